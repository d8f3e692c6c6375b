"""The exception that reaches a user as a single line, the wording of its usual causes, and that of diverged runs."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something the user can mend; the message names the key or file, the value and what would be right.

    `key` is the configuration key that it is about, where it is about one.
    """

    def __init__(self, message: str, key: str | None = None):
        super().__init__(message)
        self.key = key


class NotFinite(ArithmeticError):
    """A run's numbers have become NaN or infinite; the message says which. Trying again would give the same."""


def refuse(key: str, value: object, expected: str) -> UserError:
    """A `UserError` in the project's one form: `key: value — what would be right`."""
    return UserError(f"{key}: {value!r} — {expected}", key)


def unknown(where: str, noun: str, word: str, known: Iterable[str]) -> UserError:
    """A `UserError` for a word that is none of `known`, with the nearest one as a suggestion."""
    names = list(known)
    return UserError(f"{where}: unknown {noun} — one of {', '.join(names)}{did_you_mean(word, names)}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean x?)` where a known word is close, else nothing."""
    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
