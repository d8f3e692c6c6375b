"""Sums over a plan: of all of it, and of what its runs folder still lacks; everything as the
experiment chooses it.

A unit's evaluation is that of the chosen budget. Of a race that is an expected share of the full
one; what a family was sampled already is taken off. The selected checkpoint's fresh samples are the
phase `rescore`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache

from orchestrator.engines import catalog
from orchestrator.engines.budget import TooSmall
from orchestrator.engines.memory import Gpus
from orchestrator.experiment.units import Family, Unit, families
from orchestrator.planning.costs import PHASES, TRAINING_PHASES
from orchestrator.planning.evaluation_cost import (
    Disk,
    EvaluationCost,
    budgets,
    disk_gib,
    evaluation_generations,
    expected_share,
    family_size,
)
from orchestrator.planning.plan import Done, Plan, PlannedUnit, gpu_hours, make_plan
from orchestrator.planning.ranges import NOTHING, Range
from orchestrator.planning.rates import RATES
from orchestrator.planning.seconds import on_the_clock
from orchestrator.records.columns import EVALUATE

RESCORE = "rescore"
ALL_PHASES = (*PHASES, RESCORE)
Hours = Mapping[str, Range]  # by phase
NOT_BEGUN = Done()


# --- GPU-hours ---


@lru_cache(maxsize=16)
def unit_hours(plan: Plan, left: bool = False) -> dict[str, Hours]:
    """GPU-hours of each unit that uses a GPU, by its id and phase; `left`: of what is not there
    yet.

    The fresh samples of a family's selected checkpoint stand at its first setting, for each seed.
    """
    done = plan.done if left else {}
    shares, hours = evaluation_shares(plan), {}
    rescored = {unit.id for unit in rescored_units(plan, done)}
    # Thousands of units share a few kinds, places in a race and states, so the same hours are
    # worked out once.
    known: dict[tuple[object, ...], Hours] = {}
    for planned in plan.units:
        unit, needed = planned.unit, planned.resources
        if needed.gpu_hours is None:
            continue
        there = done.get(unit.id, NOT_BEGUN)
        case = (id(needed), shares[unit.id], there, unit.id in rescored)
        if case not in known:
            trained = (
                gpu_hours(unit, plan.costs[unit.setup], 0, there.steps)
                if there.steps
                else needed.gpu_hours
            )
            evaluated = needed.gpu_hours[EVALUATE]
            known[case] = {
                **trained,
                EVALUATE: evaluated
                * share_left(shares[unit.id], there, needed.evaluation_generations),
                RESCORE: evaluated / needed.checkpoints if unit.id in rescored else NOTHING,
            }
        hours[unit.id] = known[case]
    return hours


@lru_cache(maxsize=16)
def families_of(plan: Plan) -> list[Family]:
    """The settings of each setup and method, and of the untrained student."""
    return families(
        planned.unit for planned in plan.units if planned.unit.id not in plan.confirming
    )


@lru_cache(maxsize=16)
def evaluation_shares(plan: Plan) -> dict[str, Range]:
    """Unit id → share of its full evaluation that the chosen budget is expected to take."""
    shares = {planned.unit.id: Range.exactly(1.0) for planned in plan.units}
    for family in families_of(plan):
        setup = plan.experiment.setups[family[0][0].setup]
        if setup.evaluation.budget == "adaptive":
            share = expected_share(family_size(family, setup), setup)
            for setting in family:
                shares |= {unit.id: share for unit in setting}
    return shares


def share_left(share: Range, done: Done, generations: int) -> Range:
    """Subtract existing samples from an expected `share` of `generations`; 0 once the family's
    selection is final.
    """
    if done.selected or not generations:
        return NOTHING
    there = done.generations / generations
    return Range.of(lambda scenario: max(0.0, share.at(scenario) - there))


def rescored_units(plan: Plan, done: Mapping[str, Done]) -> list[Unit]:
    """The seeds of one setting of each family that gets fresh samples and does not have them."""
    rescored = []
    for family in families_of(plan):
        # The selected setting is still open. All cost the same, so the first stands for it.
        first_setting = family[0]
        rescores = plan.experiment.setups[first_setting[0].setup].evaluation.rescore
        if rescores and not done.get(first_setting[0].id, NOT_BEGUN).rescored:
            rescored += first_setting
    return rescored


def total_gpu_hours(plan: Plan, setup: str | None = None, left: bool = False) -> Hours | None:
    """GPU-hours of all units, or of one setup's, by phase with their `total`; None if none of them
    uses a GPU.
    """
    of_setup = {planned.unit.id for planned in plan.units if setup in (None, planned.unit.setup)}
    return with_total(
        [hours for unit_id, hours in unit_hours(plan, left).items() if unit_id in of_setup]
    )


def with_total(parts: list[Hours]) -> Hours | None:
    """Sums by phase and their `total`; None of nothing."""
    if not parts:
        return None
    # Units of a kind have one and the same object, which is counted and added once.
    counts = Counter(map(id, parts))
    different = {id(part): part for part in parts}
    phases = {}
    for phase in ALL_PHASES:
        phases[phase] = Range.total(part[phase] * counts[key] for key, part in different.items())
    return phases | {"total": Range.total(phases.values())}


@lru_cache(maxsize=4)
def on_engines(plan: Plan) -> dict[str, Plan]:
    """The plan as if all setups sampled with one engine, for each engine with rates.

    Empty where no GPU is used. Engines that find no room on the GPU, or cannot sample on several
    where trials do, are left out.
    """
    if not any(planned.resources.gpus for planned in plan.units):
        return {}
    units, plans = [planned.unit for planned in plan.units], {}
    several = any(Gpus.of(unit.placement, "rollout").count > 1 for unit in units)
    for engine in RATES:
        if several and engine not in catalog.spreading("sampler"):
            continue
        if all(costs.engine == engine for costs in plan.costs.values()):
            plans[engine] = plan
            continue
        with suppress(TooSmall):
            plans[engine] = make_plan(
                plan.experiment, units, plan.done, plan.measured, engine, plan.gpu, plan.confirming
            )
    return plans


# --- hours on the clock ---


def longest_unit_hours(plan: Plan, left: bool = False) -> Range | None:
    """Hours on the clock of the unit that trains longest; None if no unit uses a GPU."""
    return _longest(_clock_hours(plan, left).values())


@lru_cache(maxsize=16)
def longest_chain_hours(plan: Plan, left: bool = False) -> Range | None:
    """Hours on the clock of the longest chain of units that wait for each other, however many GPUs
    there are.
    """
    alone = _clock_hours(plan, left)
    chains: dict[str, Range] = {}
    # What a unit depends on stands before it in the plan, so its chain is known when the unit
    # comes.
    for planned in plan.units:
        unit = planned.unit
        if unit.id in alone:
            before = _longest(chains[needed] for needed in unit.depends_on if needed in chains)
            chains[unit.id] = (
                alone[unit.id] if before is None else Range.total([alone[unit.id], before])
            )
    return _longest(chains.values())


def hours_on_gpus(plan: Plan, gpus: int, left: bool = False) -> Range | None:
    """Hours on the clock with so many GPUs, kept busy: never less than the longest chain. None
    without GPU units.
    """
    hours, chain = total_gpu_hours(plan, left=left), longest_chain_hours(plan, left)
    if hours is None or chain is None:
        return None
    total = hours["total"]
    return Range.of(lambda s: on_the_clock(total.at(s), [chain.at(s)], gpus))


@lru_cache(maxsize=16)
def _clock_hours(plan: Plan, left: bool) -> dict[str, Range]:
    """Hours that each unit trains; evaluators sample its checkpoints beside it, on as many GPUs as
    there are.
    """
    clock, known = {}, {}
    gpus = {planned.unit.id: planned.resources.gpus for planned in plan.units}
    for unit_id, hours in unit_hours(plan, left).items():
        case = id(hours), gpus[unit_id]
        if case not in known:
            known[case] = Range.total(hours[phase] for phase in TRAINING_PHASES) / gpus[unit_id]
        clock[unit_id] = known[case]
    return clock


def _longest(hours: Iterable[Range]) -> Range | None:
    return max(hours, key=lambda h: h.high, default=None)


# --- the other sums ---


def units_left(plan: Plan) -> list[PlannedUnit]:
    """Units that `trb submit` would still have something to do for."""
    return [
        planned for planned in plan.units if not plan.done.get(planned.unit.id, NOT_BEGUN).complete
    ]


@lru_cache(maxsize=16)
def evaluation_budgets(plan: Plan) -> dict[str, EvaluationCost]:
    """Cost of all of the evaluation under each budget and of rescoring; see
    `planning.evaluation_cost`.
    """
    full, known = {}, {}
    for planned in plan.units:
        needed = planned.resources
        if id(needed) not in known:
            hours = needed.gpu_hours[EVALUATE] if needed.gpu_hours else None
            known[id(needed)] = EvaluationCost(
                Range.exactly(float(needed.evaluation_generations)), hours
            )
        full[planned.unit.id] = known[id(needed)]
    return budgets(plan.experiment, families_of(plan), full)


def checkpoints_gib(plan: Plan) -> Disk:
    """GiB of checkpoints kept in the end, and the most before."""
    return disk_gib(plan.experiment, [planned.unit for planned in plan.units])


@lru_cache(maxsize=16)
def expected_tokens(plan: Plan) -> dict[str, Range]:
    """Tokens of all `training` responses, and of the responses of a full `evaluation`."""
    training, evaluation = [], []
    for name, costs in plan.costs.items():
        own = [planned.resources for planned in plan.units if planned.unit.setup == name]
        responses = sum(needed.training_generations for needed in own)
        training.append(costs.training_tokens * responses)
        checkpoints = sum(needed.checkpoints for needed in own)
        for benchmark, generations in evaluation_generations(costs.setup).items():
            evaluation.append(costs.evaluation_tokens(benchmark) * (generations * checkpoints))
    return {"training": Range.total(training), "evaluation": Range.total(evaluation)}
