"""Reads YAML files and overrides into plain values, and these into dataclasses of `config`.

Each error is one line that names the file or the key.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
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

TOO_DEEP = "less nesting, and no anchor that stands in itself"
EXAMPLES = {"methods": ", for example {vanilla: {}, skd: {K: [4, 16], tau_T: [0.6]}}"}
UNKNOWN = ("unexpected_keyword_argument", "invalid_key")


# --- files and overrides → plain values ---


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file with its references resolved; UserError names file and line."""
    try:
        with path.open(encoding="utf-8") as file:
            raw = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (IsADirectoryError, UnicodeDecodeError, PermissionError):
        raise UserError(f"{path}: not a readable YAML file") from None
    except RecursionError:
        raise UserError(f"{path}: expected {TOO_DEEP}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or "syntax").split())
        if "'\\t'" in problem:
            raise UserError(
                f"{path}{where}: '\\t': expected spaces, since YAML takes no tab there"
            ) from None
        raise UserError(f"{path}{where}: not valid YAML ({problem})") from None
    except (OmegaConfBaseException, OSError, ValueError) as error:
        # A ValueError comes from a number of thousands of digits, for example.
        raise UserError(f"{path}: {_first_line(error)}") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: {type(raw).__name__}: expected a mapping of keys to values")
    return cast(dict[str, Any], raw)


def read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """`training.steps=20` and the like as a mapping of mappings. UserError names the override."""
    _check_overrides(overrides)
    try:
        parsed = OmegaConf.from_dotlist(list(overrides))
        return cast(dict[str, Any], OmegaConf.to_container(parsed, resolve=True))
    except RecursionError:
        raise refuse("override", " ".join(overrides), TOO_DEEP) from None
    except (OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        right = f"key=value, with a value in YAML ({_first_line(error)})"
        raise refuse("override", " ".join(overrides), right) from None


def _check_overrides(overrides: Sequence[str]) -> None:
    """Refuse a word that is no override, one without its quotes, and a key that is given twice."""
    given: set[str] = set()
    before = ""
    for item in overrides:
        key, equals, _ = item.partition("=")
        # Without quotes, the shell splits `seeds=[0, 1]` at its blank into two words.
        if before.count("[") > before.count("]") or before.count("{") > before.count("}"):
            raise refuse(
                "override", before, f"with the words after it in quotes: '{before} {item}'"
            )
        before = item
        if not equals or not key:
            raise refuse("override", item, "key=value, for example training.steps=20")
        if key in given:
            raise UserError(
                f"{shortened(key, LONGEST_VALUE)}: given twice: expected every override once"
            )
        given.add(key)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def merge(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """`top` over `base`; mappings merge, everything else (lists too) is replaced."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def from_here(path: Path) -> str:
    """A path for people: relative to the working folder if it lies below that folder."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


# --- plain values → dataclasses ---


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
    one_value = place.section is None and "[" not in key
    if isinstance(error["input"], list) and one_value and key.startswith("training."):
        expected += f"; several values are an axis: axes.{key}=[…]"
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
    inside = next(places(schema, name), None)
    if inside is None:
        return unknown(key, "key", name, entries(schema))
    place = f"{key.removesuffix(name)}{inside}"
    return UserError(f"{key}: unknown key, did you mean {place}?", key)


def places(schema: type, name: str) -> Iterator[str]:
    """Keys called `name` in the parts of a dataclass: `training.optimizer.lr` for `lr`."""
    for key, declared in entries(schema).items():
        part = declared.part or declared.section
        if part is None or declared.nullable:
            continue
        if name in entries(part):
            yield f"{key}.{name}"
        for place in places(part, name):
            yield f"{key}.{place}"
