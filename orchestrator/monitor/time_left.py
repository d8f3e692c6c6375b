"""How long what is left of a unit and of a whole experiment will take, with a low and a high
estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.config import Experiment, Placement
from orchestrator.experiment.evaluation_protocol import (
    Sampling,
    problems_wanted,
    rungs,
    samples_at_once,
)
from orchestrator.experiment.units import Family, Unit
from orchestrator.monitor.device_hours import Device, devices_of
from orchestrator.planning.evaluation_cost import (
    checkpoints_evaluated,
    evaluation_generations,
    expected_share,
    family_size,
)
from orchestrator.planning.ranges import NOTHING, SCENARIOS, Range, Scenario
from orchestrator.planning.seconds import StudySeconds, on_the_clock
from orchestrator.planning.steps import steps_left
from orchestrator.records.clock import BLENDED, PLAIN
from orchestrator.records.rundir import RunReader

Work = Counter[str]  # BLENDED, PLAIN or the key of a benchmark → steps or responses


@dataclass(frozen=True)
class Left:
    """Seconds that are left: of training, in one process, and of evaluators, as if one of them did
    it all.
    """

    training: Range
    sampling: Range


@dataclass(frozen=True)
class UnitLeft:
    """The remaining work of a unit, None while unknown; its evaluators have the placement
    `evaluator`.
    """

    unit: Unit
    left: Left | None
    evaluator: Placement


def work_left(
    experiment: Experiment,
    unit: Unit,
    run: RunReader,
    step: int,
    missing: Mapping[Sampling, int],
    confirms: bool = False,
) -> Work:
    """Steps and responses that a unit still needs; `step` is the one that comes next.

    `missing` are the responses that are wanted of checkpoints that are there; those of checkpoints
    to come are added. A unit that `confirms` has a single one evaluated, in full.
    """
    setup, evaluation = experiment.setups[unit.setup], experiment.setups[unit.setup].evaluation
    work: Work = Counter()
    if not run.trained:
        work[BLENDED], work[PLAIN] = steps_left(unit, step)
        made = (
            run.next_step // setup.training.checkpoint_every
            if run.next_step < unit.steps
            else unit.steps
        )
        to_come = max(0, checkpoints_evaluated(unit, setup) - made) if unit.is_trial else 0
        of_each = samples_at_once(evaluation, unit)
        if confirms:
            to_come, of_each = 1, rungs(evaluation)[-1]
        for benchmark, samples in of_each.items():
            work[benchmark] += to_come * samples * problems_wanted(evaluation, benchmark)
    for sampling, responses in missing.items():
        work[sampling.benchmark] += responses
    return +work


def work_once_trained(experiment: Experiment, family: Family, scenario: Scenario = "mid") -> Work:
    """Responses that a family gets when all of it is trained: the later rungs of its race, then
    fresh samples.

    How many a race takes is expected: `scenario` says which of the estimates.
    """
    unit, seeds = family[0][0], len(family[0])
    setup = experiment.setups[unit.setup]
    candidates, work = family_size(family, setup), Counter[str]()
    for benchmark, responses in evaluation_generations(setup).items():
        at_once = samples_at_once(setup.evaluation, unit)[benchmark]
        of_one = at_once * problems_wanted(setup.evaluation, benchmark)
        if of_one < responses:
            share = expected_share(candidates, setup).at(scenario)
            work[benchmark] += round(max(0.0, share * responses - of_one) * candidates * seeds)
        if setup.evaluation.rescore:
            work[benchmark] += responses * seeds
    return work


def left_of(unit: Unit, work: Work, seconds: StudySeconds) -> Left | None:
    """Seconds of a unit's `work`; None while the cost of a part of it is unknown."""
    parts: dict[bool, list[Range]] = {True: [], False: []}  # whether it is training
    for kind, amount in work.items():
        cost = seconds.of(unit, kind)
        if cost is None:
            return None
        parts[kind in (BLENDED, PLAIN)].append(cost * amount)
    return Left(Range.total(parts[True]), Range.total(parts[False]))


def left_once_trained(experiment: Experiment, family: Family, seconds: StudySeconds) -> Left | None:
    """Seconds that evaluators sample a family after its last training; None while a cost is
    unknown.
    """
    unit, found = family[0][0], {}
    for scenario in SCENARIOS:
        left = left_of(unit, work_once_trained(experiment, family, scenario), seconds)
        if left is None:
            return None
        found[scenario] = left.sampling.at(scenario)
    return Left(NOTHING, Range(**found))


def sweep_seconds(jobs: Sequence[UnitLeft], capacity: Mapping[str, float]) -> Range | None:
    """How long the jobs take on GPUs or cores that are kept busy; None while one of them is
    unknown, or without room.

    A unit trains in one process as soon as what it needs is trained. Everything else runs side by
    side, as far as the `capacity` (CPU, GPU → how many) goes. So it takes as long as all of the
    work on all of the room, or as the longest chain of units that are trained one after the other,
    whichever is longer.
    """
    if not any(capacity.values()):
        return None
    work, chains = [NOTHING], {}
    for job in jobs:
        if job.left is None:
            return None
        work.append(job.left.training / _side_by_side(job.unit.placement, capacity))
        work.append(job.left.sampling / _side_by_side(job.evaluator, capacity))
        chains.setdefault(job.unit.id, NOTHING)
        chains[job.unit.id] += job.left.training
    for unit in {job.unit.id: job.unit for job in jobs}.values():
        if unit.depends_on:  # units that others wait for depend on none themselves
            chains[unit.id] += Range.total(
                chains.get(needed, NOTHING) for needed in unit.depends_on
            )
    busy = Range.total(work)
    longest = list(chains.values())
    return Range.of(lambda s: on_the_clock(busy.at(s), [each.at(s) for each in longest], room=1))


def device_hours(jobs: Sequence[UnitLeft], device: Device) -> Range | None:
    """GPU-hours or core-hours of the jobs; None while one of them is unknown."""
    total = [NOTHING]
    for job in jobs:
        if job.left is None:
            return None
        total.append(job.left.training * devices_of(job.unit.placement, device))
        total.append(job.left.sampling * devices_of(job.evaluator, device))
    return Range.total(total) / 3600


def _side_by_side(placement: Placement, capacity: Mapping[str, float]) -> float:
    """How many processes with this placement run at once."""
    needs = {"CPU": placement.cpus, "GPU": placement.gpus}
    return max(
        1.0, min(capacity.get(kind, 0.0) // amount for kind, amount in needs.items() if amount)
    )
