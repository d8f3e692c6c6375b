"""A plan as one document: `trb plan --json` prints it, and `planning.view` shows its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.planning.plan import Plan, Resources
from orchestrator.planning.ranges import Range
from orchestrator.planning.totals import (
    NOT_BEGUN,
    Disk,
    Hours,
    checkpoints_gib,
    evaluation_budgets,
    expected_tokens,
    hours_on_gpus,
    longest_chain_hours,
    longest_unit_hours,
    on_engines,
    packing_gains,
    step_seconds,
    sufficient_hours,
    texts_gib,
    total_gpu_hours,
    unit_hours,
    units_left,
    with_total,
)

GPUS_OF_A_NODE = 8
COUNTS = ("generations", "expected")  # keys of estimates that are printed as whole numbers


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values: `units`, `totals`, `step_seconds`, `assumptions`.

    `packing_gains` and `max_gpu_hours` are those of `planning.totals`.
    """
    return {
        "units": _units_json(plan),
        "totals": totals(plan),
        "step_seconds": _plain(step_seconds(plan)),
        "packing_gains": {name: round(gain, 3) for name, gain in packing_gains(plan).items()},
        "max_gpu_hours": sufficient_hours(plan),
        "assumptions": [asdict(assumption) for assumption in plan.assumptions],
    }


def totals(plan: Plan) -> dict[str, Any]:
    """The `summary` as plain values, with estimates rounded."""
    return _plain(summary(plan))


def summary(plan: Plan) -> dict[str, Any]:
    """Sums over the units; each estimate is a Range.

    `left` holds the sums of what the runs folder lacks, `engines` those with each engine.
    """
    by_kind: Counter[str] = Counter()
    by_method: Counter[str | None] = Counter()
    by_setup: dict[str, Counter[str]] = {}
    for name in plan.experiment.setups:
        by_setup[name] = Counter()
    generations: Counter[str] = Counter()
    most_tokens: Counter[str] = Counter()
    ready = gpus = 0
    for planned in plan.units:
        unit, needed = planned.unit, planned.resources
        by_kind[unit.kind] += 1
        by_setup[unit.setup][unit.kind] += 1
        ready += not unit.depends_on
        if unit.is_trial:
            by_method[unit.method] += 1
            gpus = max(gpus, unit.placement.gpus)
        generations["training"] += needed.training_generations
        generations["evaluation"] += needed.evaluation_generations
        most_tokens["training"] += needed.training_tokens
        most_tokens["evaluation"] += needed.evaluation_tokens
    # Expected tokens follow from assumed or measured lengths; None where nothing is assumed.
    expected = expected_tokens(plan) if plan.assumptions else {}
    generated = {}
    for what, number in generations.items():
        tokens = {"most": most_tokens[what], "expected": expected.get(what)}
        generated[what] = {"generations": number, "tokens": tokens}
    chosen = {}
    for name, setup in plan.experiment.setups.items():
        evaluation = setup.evaluation
        chosen[name] = {
            "budget": evaluation.budget,
            "error": evaluation.error,
            "rescore": evaluation.rescore,
        }
    engines = {}
    for name, on_engine in on_engines(plan).items():
        engines[name] = _with_engine(on_engine)
    hours = total_gpu_hours(plan)
    document: dict[str, Any] = {
        "units": len(plan.units),
        "by_kind": by_kind,
        "by_setup": by_setup,
        "by_method": by_method,
    }
    if plan.confirming:
        document["confirming"] = len(plan.confirming)
    document |= {"ready_at_once": ready, "gpus_per_trial": gpus}
    document |= generated
    document |= {
        "evaluation_budgets": evaluation_budgets(plan),
        "evaluation_chosen": chosen,
        "chosen_gpu_hours": hours and hours["total"],
        "checkpoints_gib": checkpoints_gib(plan),
        "texts_gib": texts_gib(plan),
        "gpu_hours": hours,
    }
    document |= _longest(plan)
    left = {"units": len(units_left(plan)), "gpu_hours": total_gpu_hours(plan, left=True)}
    return document | {"left": left | _longest(plan, left=True), "engines": engines}


def _with_engine(plan: Plan) -> dict[str, Any]:
    hours, clock = total_gpu_hours(plan), hours_on_gpus(plan, GPUS_OF_A_NODE)
    return {
        "chosen_gpu_hours": hours and hours["total"],
        "gpu_hours": hours,
        "evaluation_budgets": evaluation_budgets(plan),
        f"days_on_{GPUS_OF_A_NODE}_gpus": clock and clock / 24,
    }


def _longest(plan: Plan, left: bool = False) -> dict[str, Range | None]:
    return {
        "longest_unit_hours": longest_unit_hours(plan, left),
        "longest_chain_hours": longest_chain_hours(plan, left),
    }


def _plain(value: Any, decimals: int = 3) -> Any:
    """A value of the summary for JSON. Settings are no estimates and stay as they were given."""
    match value:
        case Range():
            return rounded(value, decimals)
        case Disk():
            return {name: round(gib, 3) for name, gib in value._asdict().items()}
        case Mapping():
            plain = {}
            for key, of_key in value.items():
                plain[key] = _plain(of_key, 0 if key in COUNTS else 3)
            return plain
        case _:
            return value


def rounded(value: Range, decimals: int) -> dict[str, float]:
    """The three estimates of a number; without decimals they are whole numbers."""
    return {name: round(estimate, decimals or None) for name, estimate in vars(value).items()}


# --- units ---


def _units_json(plan: Plan) -> list[dict[str, Any]]:
    hours, made = unit_hours(plan), []
    # Units of a kind need the same: they share one value.
    needs: dict[tuple[int, int], dict[str, Any]] = {}
    for planned in plan.units:
        unit, of_unit = planned.unit, hours.get(planned.unit.id)
        key = id(planned.resources), id(of_unit)
        if key not in needs:
            needs[key] = _resources_json(planned.resources, of_unit)
        made.append(
            {
                "id": unit.id,
                "kind": unit.kind,
                "setup": unit.setup,
                "method": unit.method,
                "knobs": dict(unit.knobs),
                "seed": unit.seed,
                "depends_on": list(unit.depends_on),
                "steps": unit.steps,
                "done": dict(vars(plan.done.get(unit.id, NOT_BEGUN))),
                "resources": needs[key],
            }
        )
    return made


def _resources_json(needed: Resources, hours: Hours | None) -> dict[str, Any]:
    memory = None
    if needed.memory is not None:
        memory = {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in vars(needed.memory).items()
        }
    return {
        "placement": needed.placement,
        "gpus": needed.gpus,
        "cpus": needed.cpus,
        "training_generations": needed.training_generations,
        "training_tokens": {"most": needed.training_tokens},
        "evaluation_generations": needed.evaluation_generations,
        "evaluation_tokens": {"most": needed.evaluation_tokens},
        "teacher_online_steps": needed.teacher_online_steps,
        "memory_gib": memory,
        "gpu_hours": _plain(with_total([hours] if hours else [])),
    }
