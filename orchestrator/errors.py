"""The program's exceptions, and the one-line wording of user errors."""

import difflib
import errno
from collections.abc import Collection, Iterable
from typing import Any


class UserError(ValueError):
    """A mistake that the user can mend; the message names key or file, value, and a right value.

    `key` is the configuration key concerned, if any.
    """

    def __init__(self, message: str, key: str | None = None):
        super().__init__(message)
        self.key = key


class NotFinite(ArithmeticError):
    """A run's numbers became NaN or infinite; the message names them. A retry gives the same."""


class WrongWeights(RuntimeError):
    """An engine does not hold the weights that it should, or computes other numbers with them.

    The tensors, kernels and bounds of the comparison are the same in every process: a retry ends in
    the same way.
    """


class LeaseHeld(RuntimeError):
    """Another process works on the unit, or on the slice; see `liveness.leases`."""


class EngineLost(RuntimeError):
    """An engine's process died or fell silent, even after a restart. The call may be repeated."""


class GpuFull(EngineLost):
    """An engine cannot start because other processes hold the memory granted to it."""


class EngineOutOfMemory(EngineLost):
    """An engine's process ran out of memory, or got less than its settings count on.

    It may be started again with less.
    """


class RankLost(RuntimeError):
    """One process of a multi-process engine is gone with its state. New processes may succeed."""


class ClusterDied(RuntimeError):
    """Essential processes of a sweep's cluster are gone."""


FULL = {errno.ENOSPC, errno.EDQUOT}  # of a disk, or of its user's share
UNWRITABLE = FULL | {errno.EACCES, errno.EPERM, errno.EROFS}

LONGEST_VALUE = 80  # characters of a value in a message
LONGEST_LINE = 380  # characters of a message


def refuse(key: str, value: object, expected: str) -> UserError:
    """A `UserError` in the project's one form: `key: 'value': expected …`."""
    return UserError(f"{shortened(key, LONGEST_VALUE)}: {shown(value)}: expected {expected}", key)


def shown(value: object) -> str:
    """The repr of a value, shortened to LONGEST_VALUE characters."""
    return shortened(repr(value), LONGEST_VALUE)


def shortened(text: str, longest: int) -> str:
    """Cut the middle out of a `text` longer than `longest` characters."""
    if len(text) <= longest:
        return text
    tail = (longest - 1) // 3
    return f"{text[: longest - 1 - tail]}…{text[-tail:]}"


def one_line(error: BaseException) -> str:
    """The message of an error as one line of at most LONGEST_LINE characters."""
    return shortened(" ".join(str(error).split()), LONGEST_LINE)


def one_of(key: str, value: Any, allowed: Collection[str]) -> None:
    """Raise UserError unless `value` is one of the `allowed` words."""
    if value not in allowed:
        raise refuse(key, value, f"one of {', '.join(allowed)}{did_you_mean(str(value), allowed)}")


def unknown(where: str, noun: str, word: str, known: Iterable[str]) -> UserError:
    """A `UserError` for a word outside `known`, with the nearest known word as a suggestion."""
    names = list(known)
    hint = did_you_mean(word, names)
    return UserError(
        f"{shortened(where, LONGEST_VALUE)}: unknown {noun}: expected one of {', '.join(names)}{hint}"
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`, did you mean x?` if a known word is close, else an empty string."""
    close = difflib.get_close_matches(shortened(str(word), LONGEST_VALUE), list(known), n=1)
    return f", did you mean {close[0]}?" if close else ""
