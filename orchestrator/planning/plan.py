"""The plan of an experiment before anything runs: units, memory, GPU-hours by phase, and the clock.

`planning.costs` says how long a training step and an evaluation take; here units are charged for as
many of them as they need, and the sums are taken. Training and evaluation are apart: a unit trains
on its GPU, and evaluators sample its checkpoints on theirs. A unit's evaluation is that of the
chosen budget. A race takes an expected share of the full evaluation, minus the samples that already
exist. The fresh samples of the selected checkpoint are the phase `rescore`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from orchestrator.config import Experiment, Placement, Runtime, Setup
from orchestrator.engines.budget import Budget, Situation, TooSmall, budget
from orchestrator.engines.memory import GIB, STATE_BYTES, Gpus, decoder, sequences_per_step
from orchestrator.experiment.axes import axes_of
from orchestrator.experiment.methods import REFERENCE
from orchestrator.experiment.units import (
    Family,
    Unit,
    checkpoint_steps,
    expand,
    families,
    setup_of,
    widest_setup,
)
from orchestrator.planning.costs import OTHER, PHASES, TRAINING_PHASES, SetupCosts
from orchestrator.planning.numbers import NOTHING, Range
from orchestrator.planning.rates import DEFAULT_GPU, GPUS, Gpu
from orchestrator.planning.seconds import Measured, on_the_clock
from orchestrator.planning.work import (
    checkpoints_evaluated,
    evaluation_generations,
    expected_share,
    family_size,
    held_out_responses,
    teacher_online_steps,
    work_left,
)
from orchestrator.records.clock import BLENDED, PLAIN, RESCORE
from orchestrator.records.log import EVALUATE, MEASURE

ALL_PHASES = (*PHASES, RESCORE)
TOTAL = "total"  # beside the phases, their sum
Hours = Mapping[str, Range]  # by phase
Budgets = Mapping[Situation, Budget | None]  # None: does not fit


@dataclass(frozen=True)
class UnitNeeds:
    """The needs of a unit that is evaluated in full; without a GPU no GPU-hours."""

    placement: str
    gpus: float
    cpus: float
    training_generations: int
    training_tokens: int  # at most
    expected_training_tokens: Range
    checkpoints: int  # that are evaluated
    evaluation_generations: int
    evaluation_tokens: int  # at most
    teacher_online_steps: int  # steps with the teacher resident while decoding
    gpu_hours: Hours | None


@dataclass(frozen=True)
class PlannedUnit:
    """A unit and what it needs."""

    unit: Unit
    resources: UnitNeeds


@dataclass(frozen=True)
class Done:
    """The part of a unit that a runs folder holds already.

    `selected`: the selection of its family is final; `rescored`: fresh samples of the selected
    checkpoint are there too; `complete`: `trb submit` has nothing to do for the unit.
    """

    steps: int = 0
    generations: int = 0  # that take part in selection, of all checkpoints
    selected: bool = False
    rescored: bool = False
    complete: bool = False


NOT_BEGUN, WHOLE = Done(), Range.exactly(1.0)


# Two plans are equal where they are one object, so that sums over one can be kept.
@dataclass(frozen=True, eq=False)
class Plan:
    """Units in the order of the grid, the numbers that their costs rest on, and what is done.

    Of units in `confirming` one checkpoint alone is evaluated.
    """

    experiment: Experiment
    units: tuple[PlannedUnit, ...]
    costs: Mapping[str, SetupCosts]  # by setup
    gpu: Gpu  # a whole one
    done: Mapping[str, Done] = field(default_factory=dict)  # by id of the unit
    measured: Measured = field(default_factory=Measured)
    confirming: Set[str] = frozenset()  # ids

    @cached_property
    def needs(self) -> dict[str, UnitNeeds]:
        """The needs of each unit, by its id."""
        return {planned.unit.id: planned.resources for planned in self.units}

    @property
    def gpu_of_trial(self) -> Gpu:
        """The GPU, or the share of one, that a trial has."""
        return self.gpu.part(self.experiment.runtime.placement.gpu_share)

    @property
    def on_gpus(self) -> bool:
        """Whether any unit uses a GPU."""
        return any(planned.resources.gpus for planned in self.units)

    @cached_property
    def left(self) -> list[PlannedUnit]:
        """Units that `trb submit` would still have something to do for."""
        return [each for each in self.units if not self.done_of(each.unit).complete]

    @cached_property
    def families(self) -> list[Family]:
        """The settings of each setup and method, and of the untrained student."""
        units = [planned.unit for planned in self.units]
        return families(unit for unit in units if unit.id not in self.confirming)

    def done_of(self, unit: Unit) -> Done:
        """The finished part of a unit."""
        return self.done.get(unit.id, NOT_BEGUN)

    def of_setup(self, name: str) -> list[PlannedUnit]:
        """The units of a setup."""
        return [planned for planned in self.units if planned.unit.setup == name]


def make_plan(
    experiment: Experiment,
    units: Sequence[Unit] | None = None,
    done: Mapping[str, Done] | None = None,
    measured: Measured | None = None,
    gpu: Gpu = GPUS[DEFAULT_GPU],
    confirming: Set[str] = frozenset(),
) -> Plan:
    """The plan of `experiment`, whose units are `units`: instant, without side effects."""
    units = expand(experiment) if units is None else units
    measured = measured or Measured()
    costs, part = {}, gpu.part(experiment.runtime.placement.gpu_share)
    for name, setup in experiment.setups.items():
        costs[name] = measured.costs(name, setup, experiment.runtime, part)
    # Units that differ in seeds or in knobs that cost nothing share their needs; axes may cost.
    needed: dict[tuple[object, ...], UnitNeeds] = {}
    planned = []
    for unit in units:
        confirms = unit.id in confirming
        of_unit = costs[unit.setup].at(setup_of(unit, experiment))
        works = tuple(work_left(unit, of_unit.setup.training.max_response_tokens).items())
        at = (unit.setup, *axes_of(unit.knobs).items())
        kind = (at, unit.kind, confirms, unit.steps, works, unit.placement)
        if kind not in needed:
            needed[kind] = _resources(unit, of_unit, confirms)
        planned.append(PlannedUnit(unit, needed[kind]))
    return Plan(experiment, tuple(planned), costs, gpu, done or {}, measured, confirming)


def _resources(unit: Unit, costs: SetupCosts, confirms: bool) -> UnitNeeds:
    """The needs of a unit, whose setup is that of `costs`."""
    setup, placement = costs.setup, unit.placement
    checkpoints = 1 if confirms else checkpoints_evaluated(unit, setup)
    responses, longest = sequences_per_step(setup.training), setup.training.max_response_tokens
    most, expected = 0, NOTHING
    for work, count in work_left(unit, longest).items():
        most += count * responses * (work.limit or longest)
        expected += costs.tokens_under(work.limit) * (count * responses)
    evaluations = checkpoints * sum(evaluation_generations(setup).values())
    return UnitNeeds(
        placement=placement.mode,
        gpus=placement.gpus,
        cpus=placement.cpus,
        training_generations=unit.steps * responses,
        training_tokens=most,
        expected_training_tokens=expected,
        checkpoints=checkpoints,
        evaluation_generations=evaluations,
        evaluation_tokens=evaluations * setup.evaluation.max_response_tokens,
        teacher_online_steps=teacher_online_steps(unit),
        gpu_hours=gpu_hours(unit, costs, checkpoints) if placement.gpus else None,
    )


# --- units ---


@dataclass(frozen=True)
class Generated:
    """Responses of training or of a full evaluation, and their tokens; None: not estimated."""

    generations: int
    most_tokens: int
    expected_tokens: Range | None


def generated(plan: Plan) -> dict[str, Generated]:
    """Responses of `training`, to `held_out` prompts, and of the full `evaluation`."""
    needs = [planned.resources for planned in plan.units]
    training, held_out, evaluation, measured, most_measured = [], [], [], 0, 0
    for name, costs in plan.costs.items():
        own = [planned.resources for planned in plan.of_setup(name)]
        training.append(Range.total(needed.expected_training_tokens for needed in own))
        units = [each.unit for each in plan.of_setup(name)]
        asked = sum(held_out_responses(unit, setup_of(unit, plan.experiment)) for unit in units)
        measured += asked
        most_measured += asked * costs.setup.training.max_response_tokens
        held_out.append(costs.tokens_under(None) * asked)
        checkpoints = sum(needed.checkpoints for needed in own)
        for benchmark, generations in evaluation_generations(costs.setup).items():
            evaluation.append(costs.evaluation_tokens(benchmark) * (generations * checkpoints))
    # Lengths are assumed of large models alone.
    expected = [Range.total(x) if plan.on_gpus else None for x in (training, held_out, evaluation)]
    return {
        "training": Generated(
            sum(needed.training_generations for needed in needs),
            sum(needed.training_tokens for needed in needs),
            expected[0],
        ),
        "held_out": Generated(measured, most_measured, expected[1]),
        "evaluation": Generated(
            sum(needed.evaluation_generations for needed in needs),
            sum(needed.evaluation_tokens for needed in needs),
            expected[2],
        ),
    }


# --- memory and disk ---


def situations(placement: Placement) -> dict[Situation, Gpus]:
    """Each situation of a trial with the GPUs of its role; an evaluator has one GPU."""
    return {
        "decoding": Gpus.of(placement, "rollout"),
        "blending": Gpus.of(placement, "rollout"),
        "scoring": Gpus.of(placement, "teacher"),
        "learning": Gpus.of(placement, "learner"),
        "evaluating": Gpus(),
    }


def memory(setup: Setup, runtime: Runtime, gpu_gib: float, placement: Placement) -> Budgets:
    """The budgets of a trial's roles on their GPUs, and of an evaluator."""
    budgets: dict[Situation, Budget | None] = {}
    for situation, on in situations(placement).items():
        budgets[situation] = None
        with suppress(TooSmall):
            budgets[situation] = budget(setup, runtime, gpu_gib, situation, on)
    return budgets


def memories(plan: Plan) -> dict[str, Budgets]:
    """The budgets of each setup's trials as the experiment places them; empty without GPUs."""
    runtime = plan.experiment.runtime
    if not runtime.placement.gpus:
        return {}
    gib, of_setups = plan.gpu_of_trial.gib, {}
    for name in plan.experiment.setups:
        widest = widest_setup(plan.experiment, name)
        of_setups[name] = memory(widest, runtime, gib, runtime.placement)
    return of_setups


def full_length(granted: Budget, setup: Setup) -> int:
    """How many of a budget's responses find room in its cache at full length."""
    training = setup.training
    return granted.kv_tokens // (training.max_prompt_tokens + training.max_response_tokens)


@dataclass(frozen=True)
class Disk:
    """GiB of checkpoints: kept in the end, and the most before."""

    kept: float
    most: float


def checkpoints_gib(plan: Plan) -> Disk:
    """GiB of the trials' checkpoints, without learner states.

    Trials are trained before their checkpoints are evaluated, so all checkpoints may be there
    before `keep: best` lets go of any.
    """
    keeps_best, kept, most = plan.experiment.runtime.keep == "best", 0.0, 0.0
    for planned in plan.units:
        if planned.unit.is_trial:
            setup = setup_of(planned.unit, plan.experiment)
            made = checkpoints_evaluated(planned.unit, setup)
            of_one = decoder(setup.student, setup).weight_bytes / GIB
            kept += of_one * (1 if keeps_best else made)
            most += of_one * made
    return Disk(kept, most)


def states_gib(plan: Plan) -> float:
    """GiB of the learner's states of a trial in training: the last one, and the next beside it."""
    sizes = [0.0]
    for name, setup in plan.experiment.setups.items():
        if any(planned.unit.is_trial for planned in plan.of_setup(name)):
            sizes.append(decoder(setup.student, setup).parameters * STATE_BYTES / GIB)
    return 2 * max(sizes)


# --- GPU-hours by phase ---


def training_seconds(unit: Unit, costs: SetupCosts, first: int = 0) -> dict[str, Range]:
    """Seconds of a unit's training from step `first` on, by phase, without any evaluation."""
    costs = costs.on(unit.placement)
    works = work_left(unit, costs.setup.training.max_response_tokens, first)
    seconds: dict[str, Range] = dict.fromkeys(PHASES, NOTHING)
    seconds |= costs.steps(works)
    if works:
        seconds[OTHER] += costs.start
        seconds[MEASURE] = costs.held_out_response * held_out_responses(unit, costs.setup, first)
    return seconds


def gpu_hours(unit: Unit, costs: SetupCosts, checkpoints: int, first: int = 0) -> dict[str, Range]:
    """GPU-hours by phase of a unit's training from step `first` on, and of a full evaluation."""
    hours = {}
    for phase, seconds in training_seconds(unit, costs, first).items():
        hours[phase] = seconds * (unit.placement.gpus / 3600)
    if checkpoints:
        hours[EVALUATE] = costs.evaluation * (checkpoints * unit.placement.of_evaluator.gpus / 3600)
    return hours


@lru_cache(maxsize=16)
def unit_hours(plan: Plan, left: bool = False) -> dict[str, Hours]:
    """GPU-hours by phase of each unit that uses a GPU, by its id; `left`: of its missing part.

    The fresh samples of a family's selected checkpoint stand at its first setting, for each seed.
    """
    done = plan.done if left else {}
    shares: dict[str, Range] = {}  # of its full evaluation that a unit is expected to take
    rescored: set[str] = set()
    for family in plan.families:
        setup = setup_of(family[0][0], plan.experiment)
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
                costs = plan.costs[unit.setup].at(setup_of(unit, plan.experiment))
                phases = gpu_hours(unit, costs, 0, present.steps)
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


def total_gpu_hours(plan: Plan, setup: str | None = None, left: bool = False) -> Hours | None:
    """GPU-hours of all units, or of one setup's, by phase with their TOTAL.

    None where none of them uses a GPU.
    """
    hours, parts = unit_hours(plan, left), []
    for planned in plan.units:
        if setup in (None, planned.unit.setup) and planned.unit.id in hours:
            parts.append(hours[planned.unit.id])
    if not parts:
        return None
    # Units of a kind have one and the same object, which is counted and added once.
    counts = Counter(map(id, parts))
    different = {id(part): part for part in parts}
    phases = {}
    for phase in ALL_PHASES:
        phases[phase] = Range.total(part[phase] * counts[key] for key, part in different.items())
    return phases | {TOTAL: Range.total(phases.values())}


def sufficient_hours(plan: Plan) -> float | None:
    """GPU-hours that the high estimate fits in, in two digits: a value of `--max-gpu-hours`."""
    hours = total_gpu_hours(plan)
    if hours is None or not hours[TOTAL].high:
        return None
    high = hours[TOTAL].high
    digit = 10.0 ** (math.floor(math.log10(high)) - 1)
    return round(math.ceil(high / digit) * digit, 6)


def step_seconds(plan: Plan) -> dict[str, dict[str, dict[str, Hours]]]:
    """Seconds of a vanilla and a blended step of each setup by phase and part, with their TOTAL.

    `now` has the parts of a step that the runtime switches on, `before` none of them. A step that
    finds no room on the GPU is left out, and so is all where no GPU is used.
    """
    steps: dict[str, dict[str, dict[str, Hours]]] = {}
    for name, costs in plan.costs.items():
        if any(planned.resources.gpus for planned in plan.of_setup(name)):
            steps[name] = {"now": _steps_of(costs), "before": _steps_of(costs.before())}
    return steps


def _steps_of(costs: SetupCosts) -> dict[str, Hours]:
    steps = {}
    for step, kind in ((REFERENCE, PLAIN), ("blended", BLENDED)):
        with suppress(TooSmall):
            parts = costs.step_parts(kind)
            steps[step] = parts | {TOTAL: Range.total(parts.values())}
    return steps


@lru_cache(maxsize=16)
def packing_gains(plan: Plan) -> dict[str, float]:
    """The share of each setup's GPU-hours of training that two trials on each GPU would save.

    One trial works while the other's GPU waits for its host. Setups whose trials have no whole GPU
    each, or do not fit on half of one, are left out.
    """
    gains: dict[str, float] = {}
    for name, costs in plan.costs.items():
        units, placement = plan.of_setup(name), costs.runtime.placement
        placements = {planned.unit.placement for planned in units}
        if placements != {placement} or placement.gpus != 1 or not placement.takes_turns:
            continue
        steps: Counter[str] = Counter()
        for planned in units:
            if planned.unit.is_trial:
                steps[BLENDED] += planned.resources.teacher_online_steps
                steps[PLAIN] += planned.unit.steps - planned.resources.teacher_online_steps
        half = replace(costs, gpu=plan.gpu.part(0.5)).on(replace(placement, gpus=0.5))
        with suppress(TooSmall):
            # Two trials take the time of one on its half.
            whole, shared = (_seconds_of(each, +steps) for each in (costs, half))
            if whole:
                gains[name] = 1 - shared / 2 / whole
    return gains


def _seconds_of(costs: SetupCosts, steps: Mapping[str, int]) -> float:
    return sum(count * Range.total(costs.step(kind).values()).mid for kind, count in steps.items())


# --- the clock ---


@lru_cache(maxsize=16)
def _clock_hours(plan: Plan, left: bool) -> dict[str, Range]:
    """Hours that each unit trains; evaluators sample its checkpoints beside it on other GPUs."""
    clock, known = {}, {}
    for unit_id, hours in unit_hours(plan, left).items():
        gpus = plan.needs[unit_id].gpus
        case = id(hours), gpus
        if case not in known:
            known[case] = Range.total(hours[phase] for phase in (*TRAINING_PHASES, MEASURE)) / gpus
        clock[unit_id] = known[case]
    return clock


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


def _longest(hours: Iterable[Range]) -> Range | None:
    return max(hours, key=lambda h: h.high, default=None)


def hours_on_gpus(plan: Plan, gpus: int, left: bool = False) -> Range | None:
    """Hours on the clock with so many GPUs, kept busy; None if no unit uses a GPU."""
    hours, chain = total_gpu_hours(plan, left=left), longest_chain_hours(plan, left)
    if hours is None or chain is None:
        return None
    total = hours[TOTAL]
    return Range.of(lambda s: on_the_clock(total.at(s), [chain.at(s)], gpus))


@dataclass(frozen=True)
class TimeLeft:
    """The time left on `gpus` of the kind `gpu`, or on `cpu_cores` where no unit uses a GPU.

    `cpu_seconds` are None before any unit was timed.
    """

    gpus: int
    gpu: str
    gpu_clock_hours: Range | None = None
    cpu_cores: int | None = None
    cpu_seconds: Range | None = None


# --- what a kill costs ---


@dataclass(frozen=True)
class Repeated:
    """The steps that a kill makes a unit repeat at most, and their GPU-hours; None on CPUs."""

    steps: int
    gpu_hours: float | None = None


def repeated_by_kill(plan: Plan) -> Repeated | None:
    """The work that the longest unit does between two commits, in any scenario.

    It commits at checkpoints, and at the first step that ends `runtime.save_every` after the last
    commit. None where no unit trains.
    """
    clock, trains = _clock_hours(plan, False), [u.unit for u in plan.units if u.unit.trains]
    if not trains:
        return None
    unit = max(trains, key=lambda u: (clock.get(u.id, NOTHING).high, u.steps))
    setup = setup_of(unit, plan.experiment)
    gap = max(b - a for a, b in itertools.pairwise([0, *checkpoint_steps(unit, setup)]))
    if unit.id not in clock:
        return Repeated(gap)
    costs, steps, hours = plan.costs[unit.setup].at(setup).on(unit.placement), 0, 0.0
    for work in work_left(unit, setup.training.max_response_tokens):
        seconds = Range.total(costs.step(*work).values())
        for of_step in (seconds.low, seconds.high):
            repeated = math.ceil(min(gap, plan.experiment.runtime.save_every_s / of_step))
            steps = max(steps, repeated)
            hours = max(hours, repeated * of_step * unit.placement.gpus / 3600)
    return Repeated(steps, hours)
