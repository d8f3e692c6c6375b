"""Sums over a plan: of all of it, and of what its runs folder still lacks; everything as the experiment chooses it.

A unit's evaluation is that of the chosen budget. Of a race that is an expected share of the full one; what a family
was sampled already is taken off. The selected checkpoint's fresh samples are the phase `rescore`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.config import Experiment, Setup
from orchestrator.engines.memory import Memory
from orchestrator.experiment.units import Unit, families
from orchestrator.planning.evaluation import (
    EvaluationCost,
    budgets,
    checkpoints_evaluated,
    disk_gib,
    evaluation_generations,
    expected_share,
    family_size,
)
from orchestrator.planning.plan import HIGH, LOW, PHASES, Done, Plan, PlannedUnit, gpu_hours
from orchestrator.planning.ranges import Range
from orchestrator.records.columns import EVALUATE

ALL_PHASES = (*PHASES, "rescore")
NOTHING = Range(0.0, 0.0)
Hours = dict[str, Range]  # by phase


# --- GPU-hours ---


def unit_hours(plan: Plan, left: bool = False) -> dict[str, Hours]:
    """GPU-hours of each unit that uses a GPU, by its id and phase; `left`: of what is not there yet.

    The fresh samples of a family's selected checkpoint stand at its first setting, for each seed.
    """
    done = plan.done if left else {}
    experiment = plan.experiment
    hours = {}
    shares = evaluation_shares(plan)
    for planned in plan.units:
        unit, full = planned.unit, planned.resources.gpu_hours
        if full is not None:
            there = done.get(unit.id, Done())
            trained = gpu_hours(experiment.setups[unit.setup], unit, experiment.runtime, there.steps)
            part = share_left(shares[unit.id], there, full_generations(experiment, unit))
            hours[unit.id] = trained | {EVALUATE: full[EVALUATE] * part, "rescore": NOTHING}
    for unit in rescored_units(plan, done):
        full = next(planned.resources.gpu_hours for planned in plan.units if planned.unit.id == unit.id)
        if full is not None:
            checkpoints = checkpoints_evaluated(unit, experiment.setups[unit.setup])
            hours[unit.id]["rescore"] = full[EVALUATE] / checkpoints
    return hours


def evaluation_shares(plan: Plan) -> dict[str, Range]:
    """Unit id → share of its full evaluation that the chosen budget is expected to take."""
    shares = {planned.unit.id: Range(1.0, 1.0) for planned in plan.units}
    for family in families(planned.unit for planned in plan.units):
        setup = plan.experiment.setups[family[0][0].setup]
        if setup.evaluation.budget == "adaptive":
            share = expected_share(family_size(family, setup), setup)
            shares |= {unit.id: share for setting in family for unit in setting}
    return shares


def share_left(share: Range, done: Done, generations: int) -> Range:
    """What is left of an expected `share` of `generations`; nothing once the family's selection is final."""
    if done.selected or not generations:
        return NOTHING
    there = done.generations / generations
    return Range(max(0.0, share.low - there), max(0.0, share.high - there))


def full_generations(experiment: Experiment, unit: Unit) -> int:
    """Generations of a unit's evaluation under the full protocol."""
    setup = experiment.setups[unit.setup]
    return checkpoints_evaluated(unit, setup) * sum(evaluation_generations(setup).values())


def rescored_units(plan: Plan, done: Mapping[str, Done]) -> list[Unit]:
    """The seeds of one setting of each family that gets fresh samples and does not have them."""
    found = []
    for family in families(planned.unit for planned in plan.units):
        rescores = plan.experiment.setups[family[0][0].setup].evaluation.rescore
        if rescores and not done.get(family[0][0].id, Done()).rescored:
            found += family[0]
    return found


def total_gpu_hours(plan: Plan, setup: str | None = None, left: bool = False) -> Hours | None:
    """GPU-hours of all units, or of one setup's, by phase with their `total`; None if none of them uses a GPU."""
    of_setup = {planned.unit.id for planned in plan.units if setup in (None, planned.unit.setup)}
    return with_total([hours for unit_id, hours in unit_hours(plan, left).items() if unit_id in of_setup])


def with_total(parts: list[Hours]) -> Hours | None:
    """Sums by phase and their `total`; None of nothing."""
    if not parts:
        return None
    phases = {phase: Range.total(part[phase] for part in parts) for phase in ALL_PHASES}
    return phases | {"total": Range.total(phases.values())}


def longest_unit_hours(plan: Plan, left: bool = False) -> Range | None:
    """Hours on the clock of the unit that takes longest; None if no unit uses a GPU."""
    return _longest(_clock_hours(plan, left))


def longest_chain_hours(plan: Plan, left: bool = False) -> Range | None:
    """Hours on the clock of the longest chain of units that wait for each other, however many GPUs there are."""
    alone = _clock_hours(plan, left)
    chains: dict[str, Range] = {}
    for planned in plan.units:  # what a unit depends on stands before it
        if planned.unit.id in alone:
            before = _longest({needed: chains[needed] for needed in planned.unit.depends_on if needed in chains})
            chains[planned.unit.id] = Range.total([alone[planned.unit.id], before or NOTHING])
    return _longest(chains)


def hours_on_gpus(plan: Plan, gpus: int, left: bool = False) -> Range | None:
    """Hours on the clock with so many GPUs, kept busy: never less than the longest chain. None without GPU units."""
    hours, chain = total_gpu_hours(plan, left=left), longest_chain_hours(plan, left)
    if hours is None or chain is None:
        return None
    return Range(max(hours["total"].low / gpus, chain.low), max(hours["total"].high / gpus, chain.high))


def _clock_hours(plan: Plan, left: bool) -> dict[str, Range]:
    gpus = {planned.unit.id: planned.resources.gpus for planned in plan.units}
    totals = {unit_id: Range.total(hours.values()) for unit_id, hours in unit_hours(plan, left).items()}
    return {unit_id: hours / gpus[unit_id] for unit_id, hours in totals.items()}


def _longest(hours: Mapping[str, Range]) -> Range | None:
    return max(hours.values(), key=lambda h: h.high, default=None)


# --- the other sums ---


def units_left(plan: Plan) -> list[PlannedUnit]:
    """Units that `trb submit` would still have something to do for."""
    return [planned for planned in plan.units if not plan.done.get(planned.unit.id, Done()).complete]


def evaluation_budgets(plan: Plan) -> dict[str, EvaluationCost]:
    """Cost of all of the evaluation under each budget and of rescoring; see `planning.evaluation`."""
    hours = {u.unit.id: u.resources.gpu_hours[EVALUATE] for u in plan.units if u.resources.gpu_hours}
    return budgets(plan.experiment, [u.unit for u in plan.units], hours)


def checkpoints_gib(plan: Plan) -> Range:
    """GiB of checkpoints kept in the end (low), and the most before (high)."""
    return disk_gib(plan.experiment, [u.unit for u in plan.units])


def totals(plan: Plan) -> dict[str, Any]:
    """Sums over the units, as plain values; `left` holds those of what is not there yet."""
    units = [planned.unit for planned in plan.units]
    trials = [unit for unit in units if unit.is_trial]
    hours, disk = total_gpu_hours(plan), checkpoints_gib(plan)
    return {
        "units": len(units),
        "by_kind": dict(Counter(unit.kind for unit in units)),
        "by_setup": {name: dict(Counter(u.kind for u in units if u.setup == name)) for name in plan.experiment.setups},
        "by_method": dict(Counter(unit.method for unit in trials)),
        "waves": list(Counter(planned.wave for planned in plan.units).values()),
        "gpus_per_trial": max((unit.placement.gpus for unit in trials), default=0),
        "training": _generated(plan, "training"),
        "evaluation": _generated(plan, "evaluation"),
        "evaluation_budgets": {name: _cost_json(cost) for name, cost in evaluation_budgets(plan).items()},
        "evaluation_chosen": {name: _chosen(setup) for name, setup in plan.experiment.setups.items()},
        "chosen_gpu_hours": None if hours is None else _rounded_range(hours["total"]),
        "checkpoints_gib": {"kept": round(disk.low, 3), "most": round(disk.high, 3)},
        "gpu_hours": _rounded(hours),
        "longest_unit_hours": _rounded_range(longest_unit_hours(plan)),
        "longest_chain_hours": _rounded_range(longest_chain_hours(plan)),
        "left": {
            "units": len(units_left(plan)),
            "gpu_hours": _rounded(total_gpu_hours(plan, left=True)),
            "longest_unit_hours": _rounded_range(longest_unit_hours(plan, left=True)),
            "longest_chain_hours": _rounded_range(longest_chain_hours(plan, left=True)),
        },
    }


def _chosen(setup: Setup) -> dict[str, Any]:
    return {name: getattr(setup.evaluation, name) for name in ("budget", "error", "rescore")}


def _cost_json(cost: EvaluationCost) -> dict[str, Any]:
    generations = {"low": round(cost.generations.low), "high": round(cost.generations.high)}
    return {"generations": generations, "gpu_hours": _rounded_range(cost.gpu_hours)}


def _generated(plan: Plan, what: str) -> dict[str, Any]:
    """Generations and tokens of training or of evaluation in full.

    Expected tokens follow from the assumed mean response; None where nothing is assumed.
    """
    generations = sum(getattr(planned.resources, f"{what}_generations") for planned in plan.units)
    most = sum(getattr(planned.resources, f"{what}_tokens") for planned in plan.units)
    expected = None
    if plan.assumptions:
        expected = {"low": round(most * LOW.mean_response), "high": round(most * HIGH.mean_response)}
    return {"generations": generations, "tokens": {"most": most, "expected": expected}}


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values: `units`, `totals`, `assumptions`."""
    hours = unit_hours(plan)
    return {
        "units": [_unit_json(planned, plan.done, hours.get(planned.unit.id)) for planned in plan.units],
        "totals": totals(plan),
        "assumptions": [asdict(assumption) for assumption in plan.assumptions],
    }


def _unit_json(planned: PlannedUnit, done: Mapping[str, Done], hours: Hours | None) -> dict[str, Any]:
    unit, needed = planned.unit, planned.resources
    return {
        "id": unit.id,
        "kind": unit.kind,
        "setup": unit.setup,
        "method": unit.method,
        "knobs": dict(unit.knobs),
        "seed": unit.seed,
        "depends_on": list(unit.depends_on),
        "wave": planned.wave,
        "steps": unit.steps,
        "done": asdict(done.get(unit.id, Done())),
        "resources": {
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
        },
    }


def _memory_json(of_trial: Memory | None) -> dict[str, float] | None:
    return None if of_trial is None else {name: round(value, 3) for name, value in asdict(of_trial).items()}


def _rounded(hours: Hours | None) -> dict[str, Any] | None:
    return None if hours is None else {phase: _rounded_range(value) for phase, value in hours.items()}


def _rounded_range(value: Range | None) -> dict[str, float] | None:
    return None if value is None else {"low": round(value.low, 3), "high": round(value.high, 3)}
