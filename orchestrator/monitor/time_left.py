"""Device-hours that were spent, and how long the remaining work takes, as a Range."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.config import Experiment, Placement
from orchestrator.experiment.evaluation_protocol import (
    Sampling,
    problems_wanted,
    rungs,
    samples_at_once,
)
from orchestrator.experiment.units import Family, Unit
from orchestrator.planning.numbers import NOTHING, SCENARIOS, Range, Scenario
from orchestrator.planning.seconds import StudySeconds, on_the_clock
from orchestrator.planning.work import (
    checkpoints_evaluated,
    evaluation_generations,
    expected_share,
    family_size,
    steps_left,
)
from orchestrator.records.clock import BLENDED, PLAIN, seconds_spent
from orchestrator.records.rundir import RunReader
from orchestrator.selection.study import Study

Device = Literal["GPU", "core"]  # whose hours an experiment counts
Workload = Counter[str]  # BLENDED, PLAIN or the key of a benchmark → steps or responses

# --- spent ---


def device_of(study: Study) -> Device:
    """The device whose hours an experiment counts: GPUs, or cores where no unit uses a GPU."""
    shared = study.experiment.runtime.placement
    uses_gpus = shared.gpus or any(unit.placement.gpus for unit in study.units)
    return "GPU" if uses_gpus else "core"


def devices_of(placement: Placement, device: Device) -> float:
    """How many GPUs or cores a process with this placement holds."""
    return float(placement.gpus) if device == "GPU" else placement.cpus


def hours_spent(study: Study) -> float:
    """Device-hours of all work that was clocked in the run directories of a study."""
    device = device_of(study)
    seconds = 0.0
    evaluators = devices_of(study.experiment.runtime.placement.of_evaluator, device)
    for unit in study.units:
        training, evaluating = seconds_spent(study.reader(unit))
        seconds += devices_of(unit.placement, device) * training + evaluators * evaluating
    return seconds / 3600


# --- left ---


@dataclass(frozen=True)
class Left:
    """Seconds left of a unit's training in one process, and of sampling its checkpoints.

    `sampling` is the time of a single evaluator that takes all samples.
    """

    unit: Unit
    training: Range
    sampling: Range


def work_left(
    experiment: Experiment,
    unit: Unit,
    run: RunReader,
    step: int,
    missing: Mapping[Sampling, int],
    confirms: bool = False,
) -> Workload:
    """Steps and responses that a unit still needs; `step` is the one that comes next.

    `missing` counts the responses that its present checkpoints lack. The responses to checkpoints
    to come are added. A unit that `confirms` has a single checkpoint evaluated, in full.
    """
    setup = experiment.setups[unit.setup]
    evaluation = setup.evaluation
    work = Counter[str]()
    if not run.trained:
        work[BLENDED], work[PLAIN] = steps_left(unit, step)
        made = run.next_step // setup.training.checkpoint_every
        if run.next_step >= unit.steps:
            made = unit.steps  # more than it can have: no checkpoint is to come
        to_come = max(0, checkpoints_evaluated(unit, setup) - made) if unit.is_trial else 0
        of_each = samples_at_once(evaluation, unit)
        if confirms:
            to_come, of_each = 1, rungs(evaluation)[-1]
        for benchmark, samples in of_each.items():
            work[benchmark] += to_come * samples * problems_wanted(evaluation, benchmark)
    for sampling, responses in missing.items():
        work[sampling.benchmark] += responses
    return +work


def work_once_trained(
    experiment: Experiment, family: Family, scenario: Scenario = "mid"
) -> Workload:
    """Responses that a family gets once it is trained: the later rungs of its race, fresh samples.

    The number that a race takes is an estimate, which `scenario` chooses.
    """
    unit, seeds = family[0][0], len(family[0])
    setup = experiment.setups[unit.setup]
    work = Counter[str]()
    candidates = family_size(family, setup)
    for benchmark, responses in evaluation_generations(setup).items():
        at_once = samples_at_once(setup.evaluation, unit)[benchmark]
        of_one = at_once * problems_wanted(setup.evaluation, benchmark)
        if of_one < responses:
            share = expected_share(candidates, setup).at(scenario)
            work[benchmark] += round(max(0.0, share * responses - of_one) * candidates * seeds)
        if setup.evaluation.rescore:
            work[benchmark] += responses * seeds
    return work


def left_of(unit: Unit, work: Workload, seconds: StudySeconds) -> Left | None:
    """The time that a unit's `work` takes; None while the cost of a part of it is unknown."""
    training, sampling = [], []
    for kind, amount in work.items():
        cost = seconds.of(unit, kind)
        if cost is None:
            return None
        (training if kind in (BLENDED, PLAIN) else sampling).append(cost * amount)
    return Left(unit, Range.total(training), Range.total(sampling))


def left_once_trained(experiment: Experiment, family: Family, seconds: StudySeconds) -> Left | None:
    """The time that evaluators sample a family after its last training; None while unknown."""
    unit = family[0][0]
    sampling: dict[Scenario, float] = {}
    for scenario in SCENARIOS:
        left = left_of(unit, work_once_trained(experiment, family, scenario), seconds)
        if left is None:
            return None
        sampling[scenario] = left.sampling.at(scenario)
    return Left(unit, NOTHING, Range(**sampling))


def sweep_seconds(
    jobs: Sequence[Left], evaluator: Placement, capacity: Mapping[str, float]
) -> Range | None:
    """How long the jobs take on CPUs and GPUs that are kept busy; None without CPUs and GPUs.

    A unit trains in one process as soon as the units that it depends on are trained. Everything
    else runs side by side, as far as the `capacity` (CPU, GPU → how many) goes.
    """
    if not any(capacity.values()):
        return None
    work: list[Range] = []
    alone: dict[str, Range] = {}  # unit id → seconds of its own training
    waits_for: dict[str, Sequence[str]] = {}  # unit id → ids of the units that it depends on
    for job in jobs:
        work.append(job.training / _side_by_side(job.unit.placement, capacity))
        work.append(job.sampling / _side_by_side(evaluator, capacity))
        alone[job.unit.id] = alone.get(job.unit.id, NOTHING) + job.training
        waits_for[job.unit.id] = job.unit.depends_on
    chains = []
    for unit_id, training in alone.items():
        # Units that others wait for depend on none themselves.
        before = [alone[needed] for needed in waits_for[unit_id] if needed in alone]
        chains.append(Range.total([training, *before]))
    busy = Range.total(work)
    return Range.of(lambda s: on_the_clock(busy.at(s), [chain.at(s) for chain in chains], room=1))


def device_hours(jobs: Sequence[Left], evaluator: Placement, device: Device) -> Range:
    """GPU-hours or core-hours of the jobs."""
    seconds = []
    for job in jobs:
        seconds.append(job.training * devices_of(job.unit.placement, device))
        seconds.append(job.sampling * devices_of(evaluator, device))
    return Range.total(seconds) / 3600


def _side_by_side(placement: Placement, capacity: Mapping[str, float]) -> float:
    """How many processes with this placement run at once."""
    room = []
    for kind, amount in (("CPU", placement.cpus), ("GPU", placement.gpus)):
        if amount:
            room.append(capacity.get(kind, 0.0) // amount)
    return max(1.0, min(room))
