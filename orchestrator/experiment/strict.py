"""Plain values → frozen dataclasses, by pydantic; each error is one line that names the key."""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from orchestrator.errors import (
    LONGEST_VALUE,
    UserError,
    did_you_mean,
    refuse,
    shortened,
    unknown,
)
from orchestrator.rules import BROKEN_RULE, SIGNS, Entry, entries, entry, number

EXAMPLES = {"methods": ", for example {vanilla: {}, skd: {K: [4, 16], tau_T: [0.6]}}"}
UNKNOWN = ("unexpected_keyword_argument", "invalid_key")


def build(kind: Any, raw: Any, key: str = "") -> Any:
    """Convert `raw` to `kind`, a dataclass of `config` or another annotated type.

    Absent keys keep their defaults, which are not checked. Raises UserError on the first wrong
    value below `key`, with its dotted key and the right form; unknown keys come first.
    """
    try:
        return _adapter(kind).validate_python(raw)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
    unknown_keys = (error for error in errors if error["type"] in UNKNOWN)
    raise _refusal(kind, next(unknown_keys, errors[0]), key)


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _refusal(kind: Any, error: ErrorDetails, key: str) -> UserError:
    """The project's one line for an error of pydantic in a value of the type `kind` at `key`."""
    # Follow pydantic's path from the whole to the value: `place` declares the value at the end of
    # it, and `around` the dataclass or mapping that contains that value.
    place = around = entry(kind)
    for part in error["loc"]:
        around = place
        if typing.get_origin(place.kind) is list:
            key = f"{key}[{part}]"
        elif part != "[key]":  # pydantic's name for a wrong key of a mapping
            key = f"{key}.{part}" if key else str(part)
        if place.section is not None:
            place = entries(place.section).get(str(part), Entry(Any))
        elif items := typing.get_args(place.kind):
            place = entry(items[-1])
    if error["type"] in UNKNOWN:
        return _unknown_key(around.kind, key, str(error["loc"][-1]))
    expected = _expected(error, place, key)
    if error["input"] is None:
        missing = f"no value: expected {expected}"
        return UserError(f"{key}: {missing}" if key else missing, key)
    return refuse(key or "file", error["input"], expected)


def _expected(error: ErrorDetails, place: Entry, key: str) -> str:
    """The right form of a value, by the type of pydantic's error."""
    value, limits = error["input"], error.get("ctx", {})
    match error["type"]:
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            ((name, limit),) = limits.items()
            bound = f"{SIGNS[name]} {number(limit)}"
            return place.describe() if bound in place.rule else bound
        case "finite_number":
            return "a finite number"
        case "string_pattern_mismatch" | "string_unicode":
            return "text without control characters"
        case "string_type" if isinstance(value, int | float):
            return "text, in quotes where it is digits alone"
        case "literal_error":
            words = typing.get_args(place.kind)
            return f"one of {', '.join(words)}{did_you_mean(str(value), words)}"
        case "list_type":
            return f"a list, for example {_listed(key, value)}"
        case "dataclass_type":
            return f"a mapping with keys among {', '.join(entries(place.kind))}"
        case "dict_type":
            return f"a mapping{EXAMPLES.get(key, '')}"
        case type_ if type_ == BROKEN_RULE:
            return limits["words"]
    return place.describe()


def _listed(key: str, raw: Any) -> str:
    """The list that a value may stand for: `[arithmetic]`; for a number of seeds, that many."""
    if key.endswith("seeds") and isinstance(raw, int) and 1 < raw <= 10:
        return str(list(range(raw)))
    if isinstance(raw, dict) or raw is None:
        return "[1, 2]"
    return f"[{shortened(str(raw), LONGEST_VALUE)}]"


def _unknown_key(schema: type, key: str, name: str) -> UserError:
    """The error of a key that a dataclass lacks; it suggests another place or another word."""
    inside = next(_places(schema, name), None)
    if inside is None:
        return unknown(key, "key", name, entries(schema))
    place = f"{key.removesuffix(name)}{inside}"
    return UserError(f"{key}: unknown key, did you mean {place}?", key)


def _places(schema: type, name: str) -> Iterator[str]:
    """Keys called `name` in the parts of a dataclass: `training.optimizer.lr` for `lr`."""
    for key, declared in entries(schema).items():
        part = declared.part or declared.section
        if part is None or declared.nullable:
            continue
        if name in entries(part):
            yield f"{key}.{name}"
        for place in _places(part, name):
            yield f"{key}.{place}"
