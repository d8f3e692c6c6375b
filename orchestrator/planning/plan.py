"""The plan of an experiment before anything runs: `trb plan`. Pure arithmetic on the configuration.

`planning.costs` says how long a training step and an evaluation take; here units are charged for as
many of them as they need. Training and evaluation are apart: a unit trains on its GPU, and
evaluators sample its checkpoints on theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

from orchestrator.config import Experiment
from orchestrator.engines.memory import sequences_per_step
from orchestrator.experiment.units import Unit, expand
from orchestrator.planning.assumptions import Assumption, assumptions
from orchestrator.planning.costs import OTHER, PHASES, SetupCosts
from orchestrator.planning.evaluation_cost import checkpoints_evaluated, evaluation_generations
from orchestrator.planning.memory import Memory, memory
from orchestrator.planning.ranges import NOTHING, Range
from orchestrator.planning.rates import DEFAULT_GPU, GPUS, Gpu
from orchestrator.planning.seconds import Measured
from orchestrator.planning.steps import teacher_online_steps, work_left
from orchestrator.records.log import EVALUATE


@dataclass(frozen=True)
class Resources:
    """The needs of a unit that is evaluated in full; without a GPU no memory and no GPU-hours."""

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
    memory: Memory | None
    gpu_hours: dict[str, Range] | None  # by phase


@dataclass(frozen=True)
class PlannedUnit:
    """A unit and what it needs."""

    unit: Unit
    resources: Resources


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


# Two plans are equal where they are one object, so that `planning.totals` can keep sums over it.
@dataclass(frozen=True, eq=False)
class Plan:
    """Units in the order of the grid, the numbers that their costs rest on, and what is done.

    Of units in `confirming` one checkpoint alone is evaluated.
    """

    experiment: Experiment
    units: tuple[PlannedUnit, ...]
    costs: Mapping[str, SetupCosts]  # by setup
    gpu: Gpu  # a whole one
    assumptions: tuple[Assumption, ...]
    done: Mapping[str, Done] = field(default_factory=dict)  # by id of the unit
    measured: Measured = field(default_factory=Measured)
    confirming: Set[str] = frozenset()  # ids

    @cached_property
    def needs(self) -> dict[str, Resources]:
        """The needs of each unit, by its id."""
        return {planned.unit.id: planned.resources for planned in self.units}

    @property
    def gpu_of_trial(self) -> Gpu:
        """The GPU, or the share of one, that a trial has."""
        return self.gpu.part(self.experiment.runtime.placement.gpu_share)


def make_plan(
    experiment: Experiment,
    units: Sequence[Unit] | None = None,
    done: Mapping[str, Done] | None = None,
    measured: Measured | None = None,
    engine: str | None = None,
    gpu: Gpu = GPUS[DEFAULT_GPU],
    confirming: Set[str] = frozenset(),
) -> Plan:
    """The plan of `experiment`, whose units are `units`: instant, without side effects.

    With an `engine` all setups are planned as if they sampled with it.
    """
    units = expand(experiment) if units is None else units
    measured = measured or Measured()
    costs, part = {}, gpu.part(experiment.runtime.placement.gpu_share)
    for name, setup in experiment.setups.items():
        if engine is not None:
            setup = replace(setup, engine=replace(setup.engine, sampler=engine))
        costs[name] = measured.costs(name, setup, experiment.runtime, part)
    # Units that differ in seeds or in knobs that cost nothing share their needs.
    needed: dict[tuple[object, ...], Resources] = {}
    planned = []
    for unit in units:
        confirms = unit.id in confirming
        longest = experiment.setups[unit.setup].training.max_response_tokens
        works = tuple(work_left(unit, longest).items())
        kind = (unit.setup, unit.kind, confirms, unit.steps, works, unit.placement)
        if kind not in needed:
            needed[kind] = resources(experiment, unit, costs[unit.setup], confirms)
        planned.append(PlannedUnit(unit, needed[kind]))
    placements = (experiment.runtime.placement, *experiment.placements.values())
    most = max(placement.gpus for placement in placements)
    assumed = assumptions(costs, several=most > 1) if most else ()
    return Plan(experiment, tuple(planned), costs, gpu, assumed, done or {}, measured, confirming)


def resources(
    experiment: Experiment, unit: Unit, costs: SetupCosts, confirms: bool = False
) -> Resources:
    """Compute the needs of `unit`."""
    setup, placement = experiment.setups[unit.setup], unit.placement
    checkpoints = 1 if confirms else checkpoints_evaluated(unit, setup)
    responses, longest = sequences_per_step(setup.training), setup.training.max_response_tokens
    most, expected = 0, NOTHING
    for work, count in work_left(unit, longest).items():
        most += count * responses * (work.limit or longest)
        expected += costs.tokens_under(work.limit) * (count * responses)
    evaluations = checkpoints * sum(evaluation_generations(setup).values())
    held = hours = None
    if placement.gpus:
        held = memory(setup, experiment.runtime, costs.gpu.gib, placement)
        hours = gpu_hours(unit, costs, checkpoints)
    return Resources(
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
        memory=held,
        gpu_hours=hours,
    )


def gpu_hours(unit: Unit, costs: SetupCosts, checkpoints: int, first: int = 0) -> dict[str, Range]:
    """GPU-hours by phase of a unit's training from step `first` on, and of a full evaluation."""
    seconds = training_seconds(unit, costs, first)
    hours = {}
    for phase, of_phase in seconds.items():
        hours[phase] = of_phase * (unit.placement.gpus / 3600)
    if checkpoints:
        hours[EVALUATE] = costs.evaluation * (checkpoints * unit.placement.of_evaluator.gpus / 3600)
    return hours


def training_seconds(unit: Unit, costs: SetupCosts, first: int = 0) -> dict[str, Range]:
    """Seconds of a unit's training from step `first` on, by phase, without any evaluation."""
    costs = costs.on(unit.placement)
    works = work_left(unit, costs.setup.training.max_response_tokens, first)
    seconds: dict[str, Range] = dict.fromkeys(PHASES, NOTHING)
    seconds |= costs.steps(works)
    if works:
        seconds[OTHER] += costs.start
    return seconds
