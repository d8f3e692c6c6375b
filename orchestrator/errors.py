"""The exception that reaches a user as a single line, the wording of its usual causes, and that of diverged runs."""

import difflib
from collections.abc import Collection, Iterable
from typing import Any


class UserError(ValueError):
    """Something the user can mend; the message names the key or file, the value and what would be right.

    `key` is the configuration key that it is about, where it is about one.
    """

    def __init__(self, message: str, key: str | None = None):
        super().__init__(message)
        self.key = key


class NotFinite(ArithmeticError):
    """A run's numbers have become NaN or infinite; the message says which. Trying again would give the same."""


class WrongWeights(RuntimeError):
    """An engine does not have the weights that were put into it. A new process may."""


class EngineLost(RuntimeError):
    """The process of an engine died or fell silent, also when it was started again; a call may be made again."""


class GpuFull(EngineLost):
    """An engine cannot start, because others hold the memory that was granted to it."""


class RankLost(RuntimeError):
    """A process of an engine that works over several is gone, and with it what it held. New processes may do better."""


class ClusterDied(RuntimeError):
    """Processes that a sweep's cluster cannot do without are gone."""


LONGEST_VALUE = 80  # characters of a value in a message
LONGEST_LINE = 380  # characters of a message


def refuse(key: str, value: object, expected: str) -> UserError:
    """A `UserError` in the project's one form: `key: value — what would be right`."""
    return UserError(f"{shortened(key, LONGEST_VALUE)}: {shown(value)} — {expected}", key)


def shown(value: object) -> str:
    """A value as Python writes it, at most LONGEST_VALUE characters of it."""
    return shortened(repr(value), LONGEST_VALUE)


def shortened(text: str, longest: int) -> str:
    """`text`, without its middle where it is longer than `longest` characters."""
    if len(text) <= longest:
        return text
    tail = (longest - 1) // 3
    return f"{text[: longest - 1 - tail]}…{text[-tail:]}"


def one_line(error: BaseException) -> str:
    """What an error says, as a line of at most LONGEST_LINE characters that a terminal can show."""
    text = " ".join(str(error).split())
    return shortened("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text), LONGEST_LINE)


def one_of(key: str, value: Any, allowed: Collection[str]) -> None:
    """UserError unless `value` is one of the `allowed` words."""
    if value not in allowed:
        raise refuse(key, value, f"one of {', '.join(allowed)}{did_you_mean(str(value), allowed)}")


def unknown(where: str, noun: str, word: str, known: Iterable[str]) -> UserError:
    """A `UserError` for a word that is none of `known`, with the nearest one as a suggestion."""
    names = list(known)
    hint = did_you_mean(word, names)
    return UserError(f"{shortened(where, LONGEST_VALUE)}: unknown {noun} — one of {', '.join(names)}{hint}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean x?)` where a known word is close, else nothing."""
    close = difflib.get_close_matches(shortened(str(word), LONGEST_VALUE), list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
