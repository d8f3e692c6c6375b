"""Plain values → frozen dataclasses: every key known, every type right, every rule kept; errors
name the key.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from orchestrator.errors import LONGEST_VALUE, UserError, one_of, refuse, shortened, unknown
from orchestrator.rules import LARGEST, Rule, entries

EXAMPLES = {"methods": ", for example {vanilla: {}, skd: {K: [4, 16], tau_T: [0.6]}}"}
RENAMED = {
    "engine.rollout": "engine.sampler",
    "engine.learner": "engine.trainer",
}  # keys of earlier versions
_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def build(schema: type, raw: Any, key: str = "") -> Any:
    """Build an instance of the dataclass `schema` from the mapping `raw`; absent keys keep their
    defaults.

    Values get their types, but may break rules: the caller calls `check` after it has merged and
    completed all values. Raises UserError with the dotted key, its value and the right form.
    """
    known = entries(schema)
    if not isinstance(raw, dict):
        raise refuse(key or "file", raw, f"a mapping with keys among {', '.join(known)}")
    prefix = f"{key}." if key else ""
    for name in raw:
        if name not in known and f"{prefix}{name}" in RENAMED:
            raise UserError(
                f"{prefix}{name}: unknown key: expected {RENAMED[f'{prefix}{name}']}, as it is called now"
            )
        if name not in known:
            inside = next(_places(schema, str(name)), None)
            if inside is not None:
                raise UserError(
                    f"{prefix}{name}: unknown key, did you mean {prefix}{inside}?",
                    f"{prefix}{name}",
                )
            raise unknown(f"{prefix}{name}", "key", str(name), known)
    return schema(
        **{name: _value(known[name].kind, value, f"{prefix}{name}") for name, value in raw.items()}
    )


def _places(schema: type, name: str) -> Iterator[str]:
    """Dotted keys inside the parts of a schema whose last part is `name`: `training.optimizer.lr`
    for `lr`.
    """
    for key, entry in entries(schema).items():
        part = entry.part or (entry.kind if dataclasses.is_dataclass(entry.kind) else None)
        if part is not None:
            if name in entries(part):
                yield f"{key}.{name}"
            yield from (f"{key}.{place}" for place in _places(typing.cast(type, part), name))


def check(instance: Any, key: str = "") -> None:
    """UserError on the first key of a configuration object, or of its parts, whose value breaks its
    rule.
    """
    prefix = f"{key}." if key else ""
    for name, entry in entries(type(instance)).items():
        where, value = f"{prefix}{name}", getattr(instance, name)
        if value is None:
            continue
        obey(where, value, entry.rules)
        if entry.choices:
            one_of(where, value, entry.choices)
        if dataclasses.is_dataclass(value):
            check(value, where)
        elif isinstance(value, dict):
            for inner, item in value.items():
                if dataclasses.is_dataclass(item):
                    check(item, f"{where}.{inner}")


def obey(key: str, value: Any, rules: Iterable[Rule]) -> None:
    """UserError on the first rule that `value` breaks."""
    for rule in rules:
        expected = rule.refusal(value)
        if expected is not None:
            raise refuse(key, value, expected)


def _value(hint: Any, raw: Any, key: str) -> Any:
    """Convert `raw` to the type `hint`, with all nested values."""
    if hint is Any:
        return raw
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), raw, key)
    arguments = typing.get_args(hint)
    match typing.get_origin(hint):
        case types.UnionType | typing.Union:  # of words, or of a type and null
            if raw is None and type(None) in arguments:
                return None
            return _value(
                next(argument for argument in arguments if argument is not type(None)), raw, key
            )
        case typing.Literal:  # `check` compares it with the allowed words
            return _scalar(str, raw, key)
        case origin if origin is list:
            if not isinstance(raw, list):
                raise refuse(key, raw, f"a list, for example {_listed(key, raw)}")
            return [_value(arguments[0], item, f"{key}[{index}]") for index, item in enumerate(raw)]
        case origin if origin is dict:
            if not isinstance(raw, dict):
                raise refuse(key, raw, f"a mapping{EXAMPLES.get(key, '')}")
            return {
                str(name): _value(arguments[1], item, f"{key}.{name}") for name, item in raw.items()
            }
    return _scalar(hint, raw, key)


def _scalar(hint: Any, raw: Any, key: str) -> Any:
    """Check a scalar without silent conversions, except a whole number where a number is wanted."""
    if hint is float and isinstance(raw, int) and not isinstance(raw, bool):
        return float(raw)
    if isinstance(raw, hint) and (hint is bool or not isinstance(raw, bool)):
        if isinstance(raw, int) and abs(raw) > LARGEST:  # too large for a tensor or a generator
            raise refuse(key, raw, f"a whole number of at most {LARGEST}")
        if isinstance(raw, str) and any(
            c in "\0\x7f" or "\ud800" <= c <= "\udfff" for c in raw
        ):  # nor a file name
            raise refuse(key, raw, "text without control characters")
        return raw
    if raw is None:
        raise UserError(f"{key}: no value: expected {_NAMES[hint]}", key)
    if hint is str and isinstance(raw, int | float):
        raise refuse(key, raw, "text, in quotes where it is digits alone")
    raise refuse(key, raw, _NAMES[hint])


def _listed(key: str, raw: Any) -> str:
    """The list that a single value may stand for: `[arithmetic]`; for a number of seeds, that many."""
    if key == "seeds" and isinstance(raw, int) and 1 < raw <= 10:
        return str(list(range(raw)))
    return (
        "[1, 2]"
        if isinstance(raw, dict) or raw is None
        else f"[{shortened(str(raw), LONGEST_VALUE)}]"
    )
