"""A plan as plain values: `trb plan --json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.config import Setup
from orchestrator.planning.evaluation_cost import EvaluationCost
from orchestrator.planning.memory import Memory
from orchestrator.planning.plan import Done, Plan, PlannedUnit, Resources
from orchestrator.planning.ranges import Range
from orchestrator.planning.totals import (
    NOT_BEGUN,
    Hours,
    checkpoints_gib,
    evaluation_budgets,
    evaluation_tokens,
    hours_on_gpus,
    longest_chain_hours,
    longest_unit_hours,
    on_engines,
    total_gpu_hours,
    training_tokens,
    unit_hours,
    units_left,
    with_total,
)

GPUS_OF_A_NODE = 8


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values: `units`, `totals`, `assumptions`."""
    return {
        "units": _units_json(plan),
        "totals": totals(plan),
        "assumptions": [asdict(assumption) for assumption in plan.assumptions],
    }


def totals(plan: Plan) -> dict[str, Any]:
    """Sums over the units, as plain values; `left` holds those of what is not there yet, `engines`
    those of each.
    """
    units = [planned.unit for planned in plan.units]
    trials = [unit for unit in units if unit.is_trial]
    by_setup: dict[str, Counter[str]] = {name: Counter() for name in plan.experiment.setups}
    for unit in units:
        by_setup[unit.setup][unit.kind] += 1
    hours, disk = total_gpu_hours(plan), checkpoints_gib(plan)
    return {
        "units": len(units),
        "by_kind": dict(Counter(unit.kind for unit in units)),
        "by_setup": {name: dict(kinds) for name, kinds in by_setup.items()},
        "by_method": dict(Counter(unit.method for unit in trials)),
        **({"confirming": len(plan.confirming)} if plan.confirming else {}),
        "ready_at_once": sum(not unit.depends_on for unit in units),
        "gpus_per_trial": max((unit.placement.gpus for unit in trials), default=0),
        "training": _generated(plan, "training"),
        "evaluation": _generated(plan, "evaluation"),
        "evaluation_budgets": {
            name: _cost_json(cost) for name, cost in evaluation_budgets(plan).items()
        },
        "evaluation_chosen": {
            name: _chosen(setup) for name, setup in plan.experiment.setups.items()
        },
        "chosen_gpu_hours": None if hours is None else rounded(hours["total"], 3),
        "checkpoints_gib": {"kept": round(disk.kept, 3), "most": round(disk.most, 3)},
        "gpu_hours": _rounded(hours),
        **_longest_json(plan),
        "left": {
            "units": len(units_left(plan)),
            "gpu_hours": _rounded(total_gpu_hours(plan, left=True)),
            **_longest_json(plan, left=True),
        },
        "engines": {
            engine: _engine_json(on_engine) for engine, on_engine in on_engines(plan).items()
        },
    }


def _engine_json(plan: Plan) -> dict[str, Any]:
    """GPU-hours as chosen and under each budget, and days on a node, with one engine."""
    hours, clock = total_gpu_hours(plan), hours_on_gpus(plan, GPUS_OF_A_NODE)
    assert hours is not None
    assert clock is not None
    return {
        "chosen_gpu_hours": rounded(hours["total"], 3),
        "gpu_hours": _rounded(hours),
        "evaluation_budgets": {
            name: _cost_json(cost) for name, cost in evaluation_budgets(plan).items()
        },
        f"days_on_{GPUS_OF_A_NODE}_gpus": rounded(clock / 24, 3),
    }


def _longest_json(plan: Plan, left: bool = False) -> dict[str, Any]:
    unit, chain = longest_unit_hours(plan, left), longest_chain_hours(plan, left)
    return {
        "longest_unit_hours": None if unit is None else rounded(unit, 3),
        "longest_chain_hours": None if chain is None else rounded(chain, 3),
    }


def _chosen(setup: Setup) -> dict[str, Any]:
    return {name: getattr(setup.evaluation, name) for name in ("budget", "error", "rescore")}


def _cost_json(cost: EvaluationCost) -> dict[str, Any]:
    hours = None if cost.gpu_hours is None else rounded(cost.gpu_hours, 3)
    return {"generations": rounded(cost.generations, 0), "gpu_hours": hours}


def _generated(plan: Plan, what: str) -> dict[str, Any]:
    """Generations and tokens of training or of evaluation in full.

    Expected tokens follow from the assumed or measured lengths; None where nothing is assumed.
    """
    generations = sum(getattr(planned.resources, f"{what}_generations") for planned in plan.units)
    most = sum(getattr(planned.resources, f"{what}_tokens") for planned in plan.units)
    expected = None
    if plan.assumptions:
        tokens = training_tokens(plan) if what == "training" else evaluation_tokens(plan)
        expected = rounded(tokens, 0)
    return {"generations": generations, "tokens": {"most": most, "expected": expected}}


def _units_json(plan: Plan) -> list[dict[str, Any]]:
    hours, made = unit_hours(plan), []
    needs: dict[
        tuple[int, int], dict[str, Any]
    ] = {}  # units of a kind need the same: one value for all of them
    for planned in plan.units:
        of_unit = hours.get(planned.unit.id)
        key = id(planned.resources), id(of_unit)
        if key not in needs:
            needs[key] = _resources_json(planned.resources, of_unit)
        done = plan.done.get(planned.unit.id, NOT_BEGUN)
        made.append(_unit_json(planned, done, needs[key]))
    return made


def _unit_json(planned: PlannedUnit, done: Done, resources: Mapping[str, Any]) -> dict[str, Any]:
    unit = planned.unit
    return {
        "id": unit.id,
        "kind": unit.kind,
        "setup": unit.setup,
        "method": unit.method,
        "knobs": dict(unit.knobs),
        "seed": unit.seed,
        "depends_on": list(unit.depends_on),
        "steps": unit.steps,
        "done": dict(vars(done)),
        "resources": resources,
    }


def _resources_json(needed: Resources, hours: Hours | None) -> dict[str, Any]:
    return {
        "placement": needed.placement,
        "gpus": needed.gpus,
        "cpus": needed.cpus,
        "training_generations": needed.training_generations,
        "training_tokens": {"most": needed.training_tokens},
        "evaluation_generations": needed.evaluation_generations,
        "evaluation_tokens": {"most": needed.evaluation_tokens},
        "teacher_online_steps": needed.teacher_online_steps,
        "memory_gib": _memory_json(needed.memory),
        "gpu_hours": _rounded(with_total([hours] if hours else [])),
    }


def _memory_json(of_trial: Memory | None) -> dict[str, float] | None:
    return (
        None
        if of_trial is None
        else {name: round(value, 3) for name, value in asdict(of_trial).items()}
    )


def _rounded(hours: Hours | None) -> dict[str, Any] | None:
    return None if hours is None else {phase: rounded(value, 3) for phase, value in hours.items()}


def rounded(value: Range, decimals: int) -> dict[str, float]:
    """The three estimates of a number; without decimals they are whole numbers."""
    low, mid, high = (
        round(estimate, decimals or None) for estimate in (value.low, value.mid, value.high)
    )
    return {"low": low, "mid": mid, "high": high}
