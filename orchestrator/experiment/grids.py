"""Reads the methods of an experiment file: grids of knobs, own placements and seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from orchestrator.config import Confirm, Placement, Seeds
from orchestrator.errors import UserError, did_you_mean, refuse, unknown
from orchestrator.experiment import strict
from orchestrator.experiment.methods import METHODS, Knob, method_key, method_label
from orchestrator.experiment.placements import placement_of_method

PLACEMENT_KEY = "placement"
SEEDS_KEY = "seeds"
RESERVED = (PLACEMENT_KEY, SEEDS_KEY)  # keys that a method's block may hold beside its knobs


@dataclass(frozen=True)
class Asked:
    """The `methods` of an experiment file: method → grid of knobs, own placement and own seeds."""

    grids: dict[str, dict[str, list[Any]]]
    placements: dict[str, Placement]
    seeds: dict[str, list[int]]


def parse_methods(raw: dict[str, Any], default: Placement) -> Asked:
    """Parse the methods into grids, with the placements and seeds that some methods set themselves.

    A method set to null is left out. Raises UserError on an unknown method or knob, a value of the
    wrong type or out of range, a missing knob or a repeated value.
    """
    asked = Asked({}, {}, {})
    for method, body in raw.items():
        if method not in METHODS:
            near = did_you_mean(method, [*METHODS, *map(method_label, METHODS)])
            raise UserError(
                f"methods.{method}: unknown method: expected one of {', '.join(METHODS)}{near}"
            )
        if body is None:
            continue
        key = f"methods.{method}"
        if not isinstance(body, dict):
            raise refuse(key, body, "a mapping of knobs to lists of values, {} for none")
        knobs = METHODS[method].knobs
        for name in body:
            if name not in knobs and name not in RESERVED:
                raise unknown(f"{key}.{name}", "key", name, [*knobs, *RESERVED])
        grid = asked.grids[method] = {}
        for name, knob in knobs.items():
            grid[name] = _values(f"{key}.{name}", knob, body.get(name))
        if PLACEMENT_KEY in body:
            asked.placements[method] = placement_of_method(
                f"{key}.{PLACEMENT_KEY}", body[PLACEMENT_KEY], default
            )
        if SEEDS_KEY in body:
            asked.seeds[method] = strict.build(Seeds, body[SEEDS_KEY], f"{key}.{SEEDS_KEY}")
    return asked


def with_method_keys(values: dict[str, Any]) -> dict[str, Any]:
    """Values of an experiment file with methods under their keys, also if written as labels: `TRB`.

    Raises UserError if two names mean one method.
    """
    methods = values.get("methods")
    if not isinstance(methods, dict):
        return values
    by_key: dict[str, Any] = {}
    for name, body in methods.items():
        key = method_key(str(name))
        if key in by_key:
            raise UserError(f"methods.{name}: another name of {key}: expected every method once")
        by_key[key] = body
    return values | {"methods": by_key}


def with_confirmed_keys(confirm: Confirm) -> Confirm:
    """`confirm` with its methods under their keys, also if the file gives their labels."""
    if confirm.methods is None:
        return confirm
    return replace(confirm, methods=list(map(method_key, confirm.methods)))


def without_own_seeds(raw: dict[str, Any]) -> dict[str, Any]:
    """`methods` of an experiment file without the methods' own seeds; other values stay unchanged."""
    shared: dict[str, Any] = {}
    for method, body in raw.items():
        if isinstance(body, dict):
            body = {key: value for key, value in body.items() if key != SEEDS_KEY}
        shared[method] = body
    return shared


def _values(key: str, knob: Knob, raw: Any) -> list[Any]:
    """The values of a knob, given as one value or as a list of distinct ones."""
    values = raw if isinstance(raw, list) else [raw]
    if raw is None or not values:
        raise UserError(f"{key}: missing: expected one or several values, each {knob.describe()}")
    typed: list[Any] = []
    for value in values:
        point = strict.build(knob.type, value, key)
        if point in typed:
            raise refuse(key, raw, f"every point of the grid once; {point!r} stands twice")
        typed.append(point)
    return typed
