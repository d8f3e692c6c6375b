"""Finds the runs that confirm what a sweep found: a projection of its run directories, equal after any kill.

A family's choice of setting and step rests on its exploring seeds, and the larger the family, the
luckier the choice. Once a family is settled, its chosen setting is therefore trained again on
`confirm.seeds`, which took no part in choosing it. Only the chosen step is evaluated, on fresh
samples. Differences between methods are tested on these runs alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.config import Experiment
from orchestrator.errors import refuse
from orchestrator.experiment.units import Setting, Unit, with_seed
from orchestrator.selection import scores
from orchestrator.selection.samples_wanted import family_state
from orchestrator.selection.study import Study

FIRST_SEED = 100  # of the seeds that `confirming_seeds` gives: more exploring seeds may be added below it


def confirming_seeds(experiment: Experiment, count: int) -> list[int]:
    """The first `count` seeds from FIRST_SEED on that take no part in choosing settings."""
    if count < 2:
        raise refuse("--confirm", count, "2 or more: one run says nothing of another")
    free = (seed for seed in itertools.count(FIRST_SEED) if seed not in experiment.explored_seeds)
    return list(itertools.islice(free, count))


@dataclass(frozen=True)
class Confirmation:
    """The chosen checkpoint of one method in one setup, and the runs that confirm it.

    `chosen` are the exploring units of the setting and `step` its chosen step. `units` are trials of
    the same setting with confirming seeds, in their order; `stages` are the supervised stages that
    these start from.
    """

    chosen: Setting
    step: int
    units: list[Unit]
    stages: list[Unit]


def confirmations(study: Study) -> Iterator[Confirmation]:
    """Yield a confirmation for each family that is settled and to be confirmed."""
    experiment = study.experiment
    if not experiment.confirm.seeds or any(unit.provisional for unit in study.units):
        return
    for family in study.families():
        first = family[0][0]
        if first.method not in experiment.confirmed_methods or not family_state(study, family).settled:
            continue
        best = scores.best_of(scores.scored_checkpoints(study, family))
        if best is None:
            continue
        units, stages = [], []
        for seed in experiment.confirm.seeds:
            *before, trial = with_seed(best.setting[0], seed, experiment, study.runs)
            units.append(trial)
            stages += before
        yield Confirmation(list(best.setting), best.step, units, stages)


def with_confirmation(study: Study) -> Study:
    """The study with the confirming units of all families that are settled by now, and no others."""
    if not study.experiment.confirm.seeds:
        return study
    explored = study.exploring()
    steps: dict[str, int] = {}
    units: dict[str, Unit] = {}
    there = {unit.id for unit in explored.units}
    for confirmation in confirmations(explored):
        for unit in confirmation.stages:
            if unit.id not in there:
                units[unit.id] = unit
        for unit in confirmation.units:
            units[unit.id] = unit
            steps[unit.id] = confirmation.step
    return replace(explored, units=[*explored.units, *units.values()], confirming=steps)


def unconfirmed_units(study: Study) -> list[Unit]:
    """Units like those that will confirm the families which are still open; their settings may be others.

    `study` comes from `with_confirmation`. Units of models that are not made yet are provisional.
    """
    known = {(unit.setup, unit.method) for unit in study.units if unit.id in study.confirming}
    there = {unit.id for unit in study.units}
    units: dict[str, Unit] = {}
    for family in study.families():
        first = family[0][0]
        if first.method in study.experiment.confirmed_methods and (first.setup, first.method) not in known:
            for seed in study.experiment.confirm.seeds:
                units |= {unit.id: unit for unit in with_seed(first, seed, study.experiment, study.runs)}
    return [unit for unit in units.values() if unit.id not in there]
