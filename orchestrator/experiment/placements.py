"""Reads placements, of an experiment and of single methods, and completes their GPUs."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from orchestrator.config import Placement, PlacementMode
from orchestrator.errors import refuse
from orchestrator.experiment import strict
from orchestrator.rules import entries, entry


def in_full(given: Any) -> Any:
    """A placement that is given as its mode alone, `split`, as a mapping; others unchanged."""
    return {"mode": given} if isinstance(given, str) else given


def below(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """The keys of `lower` that stay when the placement `upper` is put over it.

    `role_gpus` in `upper` replace the total `gpus` of `lower`.
    """
    kept = dict(lower)
    if "role_gpus" in upper and "gpus" not in upper:
        kept.pop("gpus", None)
    return kept


def complete(placement: Placement, given: dict[str, Any], otherwise: float) -> Placement:
    """Derive `gpus` where `given` lacks it: the sum of `role_gpus`, else `otherwise`."""
    if "gpus" in given:
        return placement
    roles = placement.role_gpus
    return replace(placement, gpus=otherwise if roles is None else roles.total)


def placement_of_method(key: str, raw: Any, default: Placement) -> Placement:
    """The placement that a method sets itself; keys that it does not give come from `default`.

    A placement with another mode keeps no `role_gpus` of `default`.
    """
    given = in_full(raw)
    if not isinstance(given, dict):
        modes, keys = ", ".join(entry(PlacementMode).choices), ", ".join(entries(Placement))
        raise refuse(key, raw, f"{modes}, or a mapping with {keys}")
    lower = asdict(default)
    if given.get("mode", default.mode) != default.mode:
        lower["role_gpus"] = None
    merged = below(lower, given) | given
    return complete(strict.build(Placement, merged, key), merged, otherwise=0)
