"""Reads the methods of an experiment file: grids of knobs, own placements and seeds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.config import SEEDS, Confirm, Placement, PlacementMode
from orchestrator.errors import UserError, did_you_mean, refuse, unknown
from orchestrator.experiment import strict
from orchestrator.experiment.methods import METHODS, Knob, method_key, method_label
from orchestrator.rules import MOST, choices, entries

PLACEMENT_KEY = "placement"
SEEDS_KEY = "seeds"
RESERVED = (PLACEMENT_KEY, SEEDS_KEY)  # keys that a method's block may hold beside its knobs


@dataclass(frozen=True)
class Asked:
    """The `methods` of an experiment file: method → knob → list of values, and own placements and
    seeds.
    """

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
        if not isinstance(body, dict):
            raise refuse(
                f"methods.{method}", body, "a mapping of knobs to lists of values, {} for none"
            )
        key, knobs = f"methods.{method}", METHODS[method].knobs
        for name in body:
            if name not in knobs and name not in RESERVED:
                raise unknown(f"{key}.{name}", "key", name, [*knobs, *RESERVED])
        asked.grids[method] = {
            name: _values(f"{key}.{name}", knob, body.get(name)) for name, knob in knobs.items()
        }
        if PLACEMENT_KEY in body:
            asked.placements[method] = _placement(
                f"{key}.{PLACEMENT_KEY}", body[PLACEMENT_KEY], default
            )
        if SEEDS_KEY in body:
            strict.obey(f"{key}.{SEEDS_KEY}", body[SEEDS_KEY], SEEDS)
            asked.seeds[method] = body[SEEDS_KEY]
    return asked


def with_method_keys(values: dict[str, Any]) -> dict[str, Any]:
    """Values of an experiment file with its methods under their keys, which may be written as
    labels: `TRB`.

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
    """The same with its methods under their keys, which may be written as labels."""
    return (
        confirm
        if confirm.methods is None
        else replace(confirm, methods=[*map(method_key, confirm.methods)])
    )


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
    for value in values:
        if not knob.accepts(value):
            raise refuse(key, value, knob.describe())
        if value > MOST:  # for intervals without an end
            raise refuse(key, value, f"{knob.describe()}, at most {MOST:g}")
    typed = [knob.kind(value) for value in values]
    for index, value in enumerate(typed):
        if value in typed[:index]:
            raise refuse(key, raw, f"every point of the grid once; {value!r} stands twice")
    return typed


def _placement(key: str, raw: Any, default: Placement) -> Placement:
    """A placement given as a mode or as some of its keys; the other keys come from `default`.

    A placement with another mode keeps no `role_gpus` of `default`. With its own `role_gpus`,
    `gpus` defaults to their sum.
    """
    given = {"mode": raw} if isinstance(raw, str) else raw
    if not isinstance(given, dict):
        modes, keys = ", ".join(choices(PlacementMode)), ", ".join(entries(Placement))
        raise refuse(key, raw, f"{modes}, or a mapping with {keys}")
    others = asdict(default)
    if given.get("mode", default.mode) != default.mode:
        others["role_gpus"] = None
    placement = strict.build(Placement, others | given, key)
    if placement.role_gpus is not None and "gpus" not in given:
        placement = replace(placement, gpus=placement.role_gpus.total)
    return placement
