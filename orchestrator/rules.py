"""Types of keys for `config`, and a reader of their declarations.

A dataclass declares a key as `name: Annotated[type, "Meaning.", Field(ge=…)] = default`, in
pydantic's words. The types here convert nothing: a text is no number, and true is no 1.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, Strict
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

MOST = 10**9  # of anything that is counted; counting further takes hours
LARGEST = 10**18  # of any whole number; larger ones fit no tensor and no generator
SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}  # by pydantic's names of limits
NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
BROKEN_RULE = "rule"  # the type of the errors that `Must` raises

Whole = Annotated[int, Strict(), Field(ge=-LARGEST, le=LARGEST)]
Natural = Annotated[int, Strict(), Field(ge=0, le=MOST)]
Count = Annotated[int, Strict(), Field(ge=1, le=MOST)]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Positive = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Strict(), Field(ge=0, le=1)]
Probability = Annotated[float, Strict(), Field(gt=0, lt=1)]
PercentagePoints = Annotated[float, Strict(), Field(ge=0, le=100)]  # of a score in per cent
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict(), Field(pattern=r"^[^\x00\x7f]*$")]  # can be a file's name


class Section:
    """A base of the dataclasses that hold keys: keys that they do not declare are errors."""

    __pydantic_config__ = ConfigDict(extra="forbid")


class Choices:
    """Explains the words of a closed choice: `Annotated[Literal["a", "b"], Choices(a="…", b="…")]`."""

    def __init__(self, **meanings: str):
        self.meanings = meanings


@dataclass(frozen=True)
class Must:
    """A condition that `holds` tests and `words` describe, beside the type of a key."""

    words: str
    holds: Callable[[Any], bool]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: Any) -> Any:
        if not self.holds(value):
            raise PydanticCustomError(BROKEN_RULE, "{words}", {"words": self.words})
        return value


class OneOrMore(Must):
    """A rule in place of the type `int | list[int]`: pydantic's errors about a union would name its
    types behind the key.
    """

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        whole = replace(self, words=f"{NAMES[int]}, {self.words}")
        return core_schema.no_info_plain_validator_function(whole._checked)


def _are_ids(value: Any) -> bool:
    numbers = value if isinstance(value, list) else [value]
    whole = all(type(number) is int and abs(number) <= LARGEST for number in numbers)
    return whole and 0 < len(numbers) == len(set(numbers))


Ids = Annotated[int | list[int], OneOrMore("or a list of different ones", _are_ids)]


@dataclass(frozen=True)
class Entry:
    """The declaration of one key of a dataclass.

    `kind` is its type without null and without what is annotated to it; `nullable` says whether it
    can be null. `choices` maps the allowed words to their explanations; it is empty unless the key
    is a closed choice. `part` is the dataclass whose differences a mapping holds.
    """

    kind: Any
    nullable: bool = False
    meaning: str = ""
    rule: str = ""  # its conditions in words: `≥ 1 and ≤ 64`
    choices: Mapping[str, str] = field(default_factory=dict)
    part: type[Section] | None = None

    @property
    def section(self) -> type[Section] | None:
        """The dataclass that holds the keys below this one, if its value is one."""
        is_section = isinstance(self.kind, type) and issubclass(self.kind, Section)
        return self.kind if is_section else None

    def describe(self) -> str:
        """A right value, for messages: `a whole number ≥ 1 and ≤ 64`."""
        return f"{NAMES.get(self.kind, 'a mapping')} {self.rule}".rstrip()


@functools.cache
def entries(schema: type) -> dict[str, Entry]:
    """The keys of a dataclass of `config`, in their order."""
    found: dict[str, Entry] = {}
    for name, hint in typing.get_type_hints(schema, include_extras=True).items():
        found[name] = entry(hint)
    return found


def entry(hint: Any) -> Entry:
    """Read the declaration of a key off its type."""
    kind, nullable, meaning, part = hint, False, "", None
    markers: list[Any] = []
    explained: dict[str, str] = {}
    # An annotation can stand on both sides of `| None`: `Annotated[Annotated[int, …] | None, …]`.
    while typing.get_origin(kind) in (typing.Annotated, typing.Union, types.UnionType):
        if typing.get_origin(kind) is typing.Annotated:
            kind, *outer = typing.get_args(kind)
            markers = [*outer, *markers]
        else:
            nullable = nullable or types.NoneType in typing.get_args(kind)
            kind = next(type_ for type_ in typing.get_args(kind) if type_ is not types.NoneType)
    for marker in markers:
        if isinstance(marker, str):
            meaning = marker
        elif isinstance(marker, Choices):
            explained = marker.meanings
        elif isinstance(marker, type) and issubclass(marker, Section):
            part = marker
    return Entry(kind, nullable, meaning, "; ".join(_rules(markers)), explained, part)


def _rules(markers: list[Any]) -> Iterator[str]:
    """The words of the conditions of a key; limits that only computers have are left out."""
    limits: dict[str, str] = {}
    for marker in markers:
        if isinstance(marker, Must):
            yield marker.words
        elif isinstance(marker, FieldInfo):
            # An outer limit replaces an inner one of the same kind, as in pydantic.
            for limit in marker.metadata:
                for name, sign in SIGNS.items():
                    value = getattr(limit, name, None)
                    if value is not None and abs(value) < MOST:
                        limits[name] = f"{sign} {number(value)}"
    if limits:
        yield " and ".join(limits[name] for name in SIGNS if name in limits)


def number(value: float) -> str:
    """A limit as people write it: `0.05`, `1,000,000`."""
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"
