"""How long what is left of a unit and of a whole experiment will take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.config import Experiment
from orchestrator.experiment.evaluation_protocol import Sampling, problems_wanted, samples_at_once
from orchestrator.experiment.units import Family, Unit
from orchestrator.monitor.timings import Costs
from orchestrator.planning.costs import BLENDED, PLAIN
from orchestrator.planning.evaluation_cost import (
    checkpoints_evaluated,
    evaluation_generations,
    expected_share,
    family_size,
)
from orchestrator.planning.steps import teacher_online_steps
from orchestrator.records.rundir import RunReader

Work = Counter[str]  # BLENDED, PLAIN or the key of a benchmark → steps or responses


def work_left(experiment: Experiment, unit: Unit, run: RunReader, step: int, missing: Mapping[Sampling, int]) -> Work:
    """Steps and responses that a unit still needs; `step` is the one that comes next.

    `missing` are the responses that are wanted of checkpoints that are there; those of checkpoints to come are added.
    """
    setup, evaluation = experiment.setups[unit.setup], experiment.setups[unit.setup].evaluation
    work: Work = Counter()
    if not run.trained:
        blended = teacher_online_steps(unit)
        work[BLENDED] = max(0, blended - step)
        work[PLAIN] = max(0, unit.steps - max(step, blended))
        made = run.next_step // setup.training.checkpoint_every if run.next_step < unit.steps else unit.steps
        to_come = max(0, checkpoints_evaluated(unit, setup) - made) if unit.is_trial else 0
        for benchmark, samples in samples_at_once(evaluation, unit).items():
            work[benchmark] += to_come * samples * problems_wanted(evaluation, benchmark)
    for sampling, responses in missing.items():
        work[sampling.benchmark] += responses
    return +work


def work_once_trained(experiment: Experiment, family: Family) -> Work:
    """Responses that a family gets when all of it is trained: the later rungs of its race, then fresh samples."""
    unit, seeds = family[0][0], len(family[0])
    setup = experiment.setups[unit.setup]
    candidates, work = family_size(family, setup), Counter[str]()
    for benchmark, responses in evaluation_generations(setup).items():
        at_once = samples_at_once(setup.evaluation, unit)[benchmark]
        of_one = at_once * problems_wanted(setup.evaluation, benchmark)
        if of_one < responses:
            share = expected_share(candidates, setup).mid
            work[benchmark] += round(max(0.0, share * responses - of_one) * candidates * seeds)
        if setup.evaluation.rescore:
            work[benchmark] += responses * seeds
    return work


def seconds_of(unit: Unit, work: Work, costs: Costs) -> float | None:
    """How long a unit takes for `work`; None while the cost of a part of it is unknown."""
    total = 0.0
    for kind, amount in work.items():
        cost = costs.of(unit, kind)
        if cost is None:
            return None
        total += amount * cost
    return total


@dataclass(frozen=True)
class Job:
    """Work that is left: of which unit, how long it takes, and how many jobs deep it waits for others."""

    unit: Unit
    seconds: float | None
    wave: int


def sweep_seconds(jobs: Sequence[Job], cluster: Mapping[str, float], running: int) -> float | None:
    """How long the waves of jobs take one after the other; None while one of them is unknown, or nothing runs.

    The jobs of a wave run side by side as far as the `cluster` (CPU, GPU → how many) has room: it takes as long as its
    longest job, or as all of its work on the whole cluster. Of an unknown cluster only the `running` units are known.
    """
    if not running:
        return None
    total = 0.0
    for wave in sorted({job.wave for job in jobs}):
        longest = work = 0.0
        for job in jobs:
            if job.wave == wave:
                if job.seconds is None:
                    return None
                longest = max(longest, job.seconds)
                work += job.seconds / _side_by_side(job.unit, cluster, running)
        total += max(longest, work)
    return total


def _side_by_side(unit: Unit, cluster: Mapping[str, float], running: int) -> float:
    """How many units like this one run at once."""
    needs = {"CPU": unit.placement.cpus, "GPU": unit.placement.gpus}
    fitting = [cluster.get(kind, 0.0) // amount for kind, amount in needs.items() if amount]
    return max(1, min(fitting)) if cluster and fitting else running
