"""Sums over a plan, and over the part of it that its runs folder still lacks.

A unit's evaluation is that of the chosen budget. A race takes an expected share of the full
evaluation, minus the samples that already exist. The fresh samples of the selected checkpoint are
the phase `rescore`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from orchestrator.engines import catalog
from orchestrator.engines.budget import TooSmall
from orchestrator.engines.memory import GIB, Gpus, decoder
from orchestrator.experiment.evaluation_protocol import full_samples, problems_wanted
from orchestrator.experiment.methods import REFERENCE
from orchestrator.experiment.units import Family, Unit, families
from orchestrator.planning.costs import PHASES, TRAINING_PHASES, SetupCosts
from orchestrator.planning.design import Design
from orchestrator.planning.evaluation_cost import (
    checkpoints_evaluated,
    evaluation_generations,
    expected_share,
    family_size,
)
from orchestrator.planning.plan import Done, Plan, PlannedUnit, gpu_hours, make_plan
from orchestrator.planning.ranges import NOTHING, Range
from orchestrator.planning.rates import RATES
from orchestrator.planning.seconds import on_the_clock
from orchestrator.records.clock import BLENDED, PLAIN, RESCORE
from orchestrator.records.log import EVALUATE

# Bytes on disk of a token of a response, with its share of the prompt. gzip at `records.files.LEVEL` takes
# 0.31 to 0.50 bytes a letter of the solutions of AIME 2024, MATH-500 and GSM8K, least where they are
# long. Tokens of mathematics have about three letters.
TEXT_BYTES = Range(0.9, 1.2, 1.5)
ALL_PHASES = (*PHASES, RESCORE)
Hours = Mapping[str, Range]  # by phase
NOT_BEGUN, WHOLE = Done(), Range.exactly(1.0)


class Disk(NamedTuple):
    """GiB of checkpoints: kept in the end, and the most before."""

    kept: float
    most: float


# --- GPU-hours ---


@lru_cache(maxsize=16)
def unit_hours(plan: Plan, left: bool = False) -> dict[str, Hours]:
    """GPU-hours by phase of each unit that uses a GPU, by its id; `left`: of its missing part.

    The fresh samples of a family's selected checkpoint stand at its first setting, for each seed.
    """
    done = plan.done if left else {}
    shares: dict[str, Range] = {}  # of its full evaluation that a unit is expected to take
    rescored: set[str] = set()
    for family in families_of(plan):
        setup = plan.experiment.setups[family[0][0].setup]
        # The selected setting is still open. All cost the same, so the first stands for it.
        if setup.evaluation.rescore and not done.get(family[0][0].id, NOT_BEGUN).rescored:
            rescored.update(unit.id for unit in family[0])
        if setup.evaluation.budget == "adaptive":
            share = expected_share(family_size(family, setup), setup)
            for unit in itertools.chain(*family):
                shares[unit.id] = share
    # Thousands of units share a few kinds, places in a race and states, so the same hours are
    # worked out once.
    known: dict[tuple[object, ...], Hours] = {}
    hours: dict[str, Hours] = {}
    for planned in plan.units:
        unit, needed = planned.unit, planned.resources
        if needed.gpu_hours is None:
            continue
        present, share = done.get(unit.id, NOT_BEGUN), shares.get(unit.id, WHOLE)
        case = (id(needed), share, present, unit.id in rescored)
        if case not in known:
            evaluated, phases = needed.gpu_hours[EVALUATE], dict(needed.gpu_hours)
            if present.steps:
                phases = gpu_hours(unit, plan.costs[unit.setup], 0, present.steps)
            left_of = _share_left(share, present, needed.evaluation_generations)
            phases[EVALUATE] = evaluated * left_of
            phases[RESCORE] = evaluated / needed.checkpoints if unit.id in rescored else NOTHING
            known[case] = phases
        hours[unit.id] = known[case]
    return hours


def _share_left(share: Range, done: Done, generations: int) -> Range:
    """Subtract existing samples from an expected `share`; 0 once the selection is final."""
    if done.selected or not generations:
        return NOTHING
    sampled = done.generations / generations
    return Range.of(lambda scenario: max(0.0, share.at(scenario) - sampled))


@lru_cache(maxsize=16)
def families_of(plan: Plan) -> list[Family]:
    """The settings of each setup and method, and of the untrained student."""
    units = [planned.unit for planned in plan.units]
    return families(unit for unit in units if unit.id not in plan.confirming)


def total_gpu_hours(plan: Plan, setup: str | None = None, left: bool = False) -> Hours | None:
    """GPU-hours of all units, or of one setup's, by phase with their `total`.

    None where none of them uses a GPU.
    """
    hours, parts = unit_hours(plan, left), []
    for planned in plan.units:
        if setup in (None, planned.unit.setup) and planned.unit.id in hours:
            parts.append(hours[planned.unit.id])
    return with_total(parts)


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
    """Hours on the clock of the longest chain of units that wait for each other.

    No number of GPUs is faster. None if no unit uses a GPU.
    """
    alone = _clock_hours(plan, left)
    chains: dict[str, Range] = {}
    # Units stand behind those that they depend on, so these have their chains already.
    for planned in plan.units:
        unit = planned.unit
        if unit.id in alone:
            before = _longest(chains[needed] for needed in unit.depends_on if needed in chains)
            chains[unit.id] = alone[unit.id] + (before or NOTHING)
    return _longest(chains.values())


def hours_on_gpus(plan: Plan, gpus: int, left: bool = False) -> Range | None:
    """Hours on the clock with so many GPUs, kept busy; None if no unit uses a GPU."""
    hours, chain = total_gpu_hours(plan, left=left), longest_chain_hours(plan, left)
    if hours is None or chain is None:
        return None
    total = hours["total"]
    return Range.of(lambda s: on_the_clock(total.at(s), [chain.at(s)], gpus))


@lru_cache(maxsize=16)
def _clock_hours(plan: Plan, left: bool) -> dict[str, Range]:
    """Hours that each unit trains; evaluators sample its checkpoints beside it on other GPUs."""
    clock, known = {}, {}
    for unit_id, hours in unit_hours(plan, left).items():
        gpus = plan.needs[unit_id].gpus
        case = id(hours), gpus
        if case not in known:
            known[case] = Range.total(hours[phase] for phase in TRAINING_PHASES) / gpus
        clock[unit_id] = known[case]
    return clock


def _longest(hours: Iterable[Range]) -> Range | None:
    return max(hours, key=lambda h: h.high, default=None)


# --- one step ---


def step_seconds(plan: Plan) -> dict[str, dict[str, dict[str, Hours]]]:
    """Seconds of a vanilla and a blended step of each setup by phase and part, with their `total`.

    `now` has the parts of a step that the runtime switches on, `before` none of them. A step that
    finds no room on the GPU is left out, and so is all where no GPU is used.
    """
    steps: dict[str, dict[str, dict[str, Hours]]] = {}
    for name, costs in plan.costs.items():
        if not any(unit.placement.gpus for unit in _units_of(plan, name)):
            continue
        old = replace(costs.runtime, checkpointing=True, resident=False, logits_kernel="torch")
        steps[name] = {
            "now": _steps_of(costs),
            "before": _steps_of(replace(costs, runtime=old, designed=Design.before(costs.setup))),
        }
    return steps


def _steps_of(costs: SetupCosts) -> dict[str, Hours]:
    steps = {}
    for step, kind in ((REFERENCE, PLAIN), ("blended", BLENDED)):
        with suppress(TooSmall):
            parts = costs.step_parts(kind)
            steps[step] = parts | {"total": Range.total(parts.values())}
    return steps


@lru_cache(maxsize=16)
def packing_gains(plan: Plan) -> dict[str, float]:
    """The share of each setup's GPU-hours of training that two trials on each GPU would save.

    One trial works while the other's GPU waits for its host. Setups whose trials have no whole GPU
    each, or do not fit on half of one, are left out.
    """
    gains: dict[str, float] = {}
    for name, costs in plan.costs.items():
        placements = {unit.placement for unit in _units_of(plan, name)}
        placement = costs.runtime.placement
        if placements != {placement} or placement.gpus != 1 or not placement.takes_turns:
            continue
        blended = plain = 0
        for planned in plan.units:
            if planned.unit.setup == name and planned.unit.is_trial:
                blended += planned.resources.teacher_online_steps
                plain += planned.unit.steps - planned.resources.teacher_online_steps
        half = replace(costs, gpu=plan.gpu.part(0.5)).on(replace(placement, gpus=0.5))
        with suppress(TooSmall):
            # Two trials take the time of one on its half.
            whole, shared = (_seconds_of(each, plain, blended) for each in (costs, half))
            if whole:
                gains[name] = 1 - shared / 2 / whole
    return gains


def _seconds_of(costs: SetupCosts, plain: int, blended: int) -> float:
    seconds = 0.0
    for kind, count in ((PLAIN, plain), (BLENDED, blended)):
        if count:
            seconds += count * Range.total(costs.step(kind).values()).mid
    return seconds


def _units_of(plan: Plan, setup: str) -> list[Unit]:
    return [planned.unit for planned in plan.units if planned.unit.setup == setup]


# --- the other sums ---


def sufficient_hours(plan: Plan) -> float | None:
    """GPU-hours that the high estimate fits in, in two digits: a value of `--max-gpu-hours`."""
    hours = total_gpu_hours(plan)
    if hours is None or not hours["total"].high:
        return None
    high = hours["total"].high
    digit = 10.0 ** (math.floor(math.log10(high)) - 1)
    return round(math.ceil(high / digit) * digit, 6)


def units_left(plan: Plan) -> list[PlannedUnit]:
    """Units that `trb submit` would still have something to do for."""
    done = plan.done
    return [each for each in plan.units if not done.get(each.unit.id, NOT_BEGUN).complete]


@lru_cache(maxsize=16)
def evaluation_budgets(plan: Plan) -> dict[str, dict[str, Range | None]]:
    """Generations and GPU-hours of everything evaluated in `full`, in races, and of `rescore`.

    Races (`adaptive`) take what is expected of them. Rescoring takes one checkpoint of each family,
    for each seed. GPU-hours are None where no GPU is used.
    """
    generations: dict[str, list[Range]] = {"full": [], "adaptive": [], "rescore": []}
    hours: dict[str, list[Range]] = {"full": [], "adaptive": [], "rescore": []}
    for family in families_of(plan):
        setup = plan.experiment.setups[family[0][0].setup]
        one = plan.needs[family[0][0].id]  # all units of a family are evaluated alike
        full = Range.exactly(float(one.evaluation_generations * sum(map(len, family))))
        counts = {
            "full": full,
            "adaptive": full * expected_share(family_size(family, setup), setup),
            "rescore": Range.exactly(one.evaluation_generations * len(family[0]) / one.checkpoints),
        }
        for name, count in counts.items():
            generations[name].append(count)
            if one.gpu_hours is not None:
                of_one = one.gpu_hours[EVALUATE] / one.evaluation_generations
                hours[name].append(of_one * count)
    budgets = {}
    for name, counts in generations.items():
        total = Range.total(hours[name]) if hours[name] else None
        budgets[name] = {"generations": Range.total(counts), "gpu_hours": total}
    return budgets


def checkpoints_gib(plan: Plan) -> Disk:
    """GiB of the trials' checkpoints, without learner states.

    Trials are trained before their checkpoints are evaluated, so all checkpoints may be there
    before `keep: best` lets go of any.
    """
    keeps_best, kept, most = plan.experiment.runtime.keep == "best", 0.0, 0.0
    for planned in plan.units:
        if planned.unit.is_trial:
            setup = plan.experiment.setups[planned.unit.setup]
            made = checkpoints_evaluated(planned.unit, setup)
            of_one = decoder(setup.student, setup).weight_bytes / GIB
            kept += of_one * (1 if keeps_best else made)
            most += of_one * made
    return Disk(kept, most)


def texts_gib(plan: Plan) -> Range:
    """GiB of the texts of responses that `evaluation.keep_texts` keeps.

    Each evaluated checkpoint keeps some of each problem. The fresh samples of one checkpoint of
    each family keep all for each seed, and so do confirming units, which take no other samples.
    """
    tokens = []
    checkpoints: Counter[str] = Counter()
    fresh: Counter[str] = Counter()
    for planned in plan.units:
        unit, evaluated = planned.unit, planned.resources.checkpoints
        (fresh if unit.id in plan.confirming else checkpoints)[unit.setup] += evaluated
    for family in families_of(plan):
        setup = family[0][0].setup
        if plan.experiment.setups[setup].evaluation.rescore:
            fresh[setup] += len(family[0])
    for name, setup in plan.experiment.setups.items():
        evaluation, costs = setup.evaluation, plan.costs[name]
        if not evaluation.keep_texts:
            continue
        for benchmark, generations in evaluation_generations(setup).items():
            problems = problems_wanted(evaluation, benchmark)
            first = problems * min(evaluation.keep_texts, full_samples(evaluation, benchmark))
            responses = checkpoints[name] * first + fresh[name] * generations
            tokens.append(costs.evaluation_tokens(benchmark) * responses)
    return Range.total(tokens) * TEXT_BYTES / GIB


@lru_cache(maxsize=16)
def expected_tokens(plan: Plan) -> dict[str, Range]:
    """Tokens of all `training` responses, and of the responses of a full `evaluation`."""
    training, evaluation = [], []
    for name, costs in plan.costs.items():
        own = [planned.resources for planned in plan.units if planned.unit.setup == name]
        training.append(Range.total(needed.expected_training_tokens for needed in own))
        checkpoints = sum(needed.checkpoints for needed in own)
        for benchmark, generations in evaluation_generations(costs.setup).items():
            evaluation.append(costs.evaluation_tokens(benchmark) * (generations * checkpoints))
    return {"training": Range.total(training), "evaluation": Range.total(evaluation)}
