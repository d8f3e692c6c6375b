"""Rules for values of keys, beyond their types: the markers in `config`, and their one reader.

A dataclass declares a key as `name: Annotated[type, "Meaning.", rule, …] = default`. A closed
choice is a union of `Annotated[Literal["word"], "explanation"]`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MOST = 10**9  # of anything that is counted
LARGEST = 10**18  # of any whole number
INFINITE = float("inf")


class Rule:
    """A condition on values. `str()` gives its words, as `trb config` prints them."""

    def refusal(self, value: Any) -> str | None:
        """Describe a right value, for a message; None if `value` is right."""
        raise NotImplementedError


@dataclass(frozen=True)
class AtLeast(Rule):
    """A number from `low` to `most`. Larger ones are mistakes; counting up to them takes hours."""

    low: float
    most: float = MOST

    def __str__(self) -> str:
        return f"≥ {self.low:g}" if self.most == MOST else f"≥ {self.low:g} and ≤ {self.most:,.0f}"

    def refusal(self, value: float) -> str | None:
        if not value >= self.low:  # refuses NaN, too
            return f"≥ {self.low:g}"
        return f"≤ {self.most:,.0f}" if value > self.most else None


@dataclass(frozen=True)
class Between(Rule):
    """A number from `low` to `high`, both included unless open. `words` replace the default."""

    low: float
    high: float = INFINITE
    low_open: bool = False
    high_open: bool = False
    words: str = ""

    def __str__(self) -> str:
        if self.words:
            return self.words
        left = f"{'>' if self.low_open else '≥'} {self.low:g}"
        return (
            left
            if self.high == INFINITE
            else f"{left} and {'<' if self.high_open else '≤'} {self.high:g}"
        )

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below

    def refusal(self, value: float) -> str | None:
        return None if value in self else str(self)


@dataclass(frozen=True)
class Must(Rule):
    """A condition that `holds` tests and `words` describe."""

    words: str
    holds: Callable[[Any], bool]

    def __str__(self) -> str:
        return self.words

    def refusal(self, value: Any) -> str | None:
        return None if self.holds(value) else self.words


@dataclass(frozen=True)
class Entry:
    """The declaration of one key of a dataclass.

    `kind` is its type without markers. `choices` maps the allowed words to their explanations; it
    is empty unless the key is a closed choice. `part` is the dataclass whose differences a mapping
    holds. A key that is itself a dataclass has only a kind.
    """

    kind: Any
    meaning: str = ""
    rules: tuple[Rule, ...] = ()
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    part: type | None = None


@functools.cache
def entries(schema: type) -> dict[str, Entry]:
    """The keys of a dataclass of `config`, in their order."""
    plain = typing.get_type_hints(schema)
    found: dict[str, Entry] = {}
    for name, hint in typing.get_type_hints(schema, include_extras=True).items():
        if typing.get_origin(hint) is not typing.Annotated:
            found[name] = Entry(plain[name])
            continue
        kind, *markers = typing.get_args(hint)
        texts = [marker for marker in markers if isinstance(marker, str)]
        parts = [
            marker
            for marker in markers
            if dataclasses.is_dataclass(marker) and isinstance(marker, type)
        ]
        found[name] = Entry(
            kind=plain[name],
            meaning=texts[-1],  # a choice of a single word has its explanation before it
            rules=tuple(marker for marker in markers if isinstance(marker, Rule)),
            choices=choices(hint) or choices(kind),
            part=parts[0] if parts else None,
        )
    return found


def choices(hint: Any) -> dict[str, str]:
    """Map the words of a closed choice, with or without null, to their explanations.

    Empty for any other type.
    """
    found: dict[str, str] = {}
    members = (
        typing.get_args(hint)
        if typing.get_origin(hint) in (types.UnionType, typing.Union)
        else [hint]
    )
    for member in members:
        kind, *texts = typing.get_args(member) or [member]
        if typing.get_origin(kind) is typing.Literal:
            found |= dict.fromkeys(typing.get_args(kind), texts[0])
    return found
