"""Decides which settings of a halving search go on, as a projection of the run directories.

At each rung, a number of steps, the settings of a family that are still in the search are compared
by their checkpoints of that step, averaged over seeds. One of `search.reduction` goes on (successive
halving: Jamieson and Talwalkar 2016; Karnin et al. 2013 for the bandit). The others are stopped: they
keep their state, so that another experiment can take them up, and no checkpoint of theirs is selected.

A rung is decided once all of its settings are there. ASHA (Li et al. 2020) decides as each arrives,
which keeps every GPU busy inside of a family, but then the order in which processes end decides who is
stopped. Here a kill changes nothing: every process replays the same decisions on the same counts. Other
families train while one waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from orchestrator.experiment import evaluation_protocol
from orchestrator.experiment.search import rungs
from orchestrator.experiment.units import Family, Unit
from orchestrator.selection import scores
from orchestrator.selection.study import Halved, Study


def with_halving(study: Study) -> Study:
    """The study with how far the units of its halving search go by now; itself without one."""
    if study.experiment.search.kind != "halving":
        return study
    halved: dict[str, Halved] = {}
    for family in study.families():
        if family[0][0].is_trial and len(family) > 1:
            halved |= _of_family(study, family)
    return replace(study, halved=halved)


def _of_family(study: Study, family: Family) -> Mapping[str, Halved]:
    first = family[0][0]
    every = study.setup_of(first).training.checkpoint_every
    reduction = study.experiment.search.reduction
    halved: dict[str, Halved] = {}

    def note(settings: Family, goal: int, expected: int, stopped: bool = False) -> None:
        for unit in (unit for setting in settings for unit in setting):
            steps = min(goal, unit.steps), passed, min(expected, unit.steps)
            halved[unit.id] = Halved(*steps, stopped)

    left, passed, goal = list(family), 0, 0  # without a goal the rungs so far are decided
    for rung in rungs(min(unit.steps for setting in family for unit in setting), every, reduction):
        if len(left) < 2:
            break
        ranked = None if goal else _ranked(study, left, rung)
        if ranked is None:
            # Not decided yet. Any of them may go on, and the first ones stand for those that will.
            goal, ranked = goal or rung, left
        kept = ranked[: math.ceil(len(left) / reduction)]
        note([each for each in left if each not in kept], goal or rung, rung, stopped=not goal)
        left = [each for each in left if each in kept]
        passed = passed if goal else rung
    end = max(unit.steps for setting in left for unit in setting)
    note(left, goal or end, end)
    return halved


def _ranked(study: Study, settings: Family, rung: int) -> Family | None:
    """The settings from the best at a rung to the worst, ties in the order of the grid.

    One that failed before the rung comes last. None while another is not there yet.
    """
    ranks: list[tuple[bool, Fraction | float]] = []
    for setting in settings:
        found = [_score(study, unit, rung) for unit in setting]
        if all(score is not None for score in found):
            ranks.append((False, -sum(score for score in found if score is not None)))
        elif any(_has_failed(study, unit, rung) for unit in setting):
            ranks.append((True, 0))
        else:
            return None
    order = sorted(range(len(settings)), key=lambda place: ranks[place])
    return [settings[place] for place in order]


def _score(study: Study, unit: Unit, rung: int) -> Fraction | float | None:
    """The score of a unit at a rung, high is good; None while it is not known.

    pass@1 counts the samples that every checkpoint gets at once: later ones of a race, which few
    checkpoints have, change no earlier decision.
    """
    run = study.reader(unit)
    if study.experiment.search.by == "held_out_kl":
        if run.next_step < rung:
            return None
        measured = run.held_out_at(rung)  # none where a diverged student could not be measured
        return -math.inf if measured is None or measured.kl is None else -measured.kl
    total = Fraction(0)
    at_once = evaluation_protocol.samples_at_once(study.setup_of(unit).evaluation, unit)
    for benchmark, evaluation_id in study.evaluation_ids(unit.setup).items():
        samples = at_once[benchmark]
        present = scores.tally(run, evaluation_id, rung)
        if present is None or present.samples < samples:
            return None
        total += scores.tally_at(run, evaluation_id, rung, samples).pass_at_1
    return total


def _has_failed(study: Study, unit: Unit, rung: int) -> bool:
    """Whether a unit, or the evaluation of its checkpoint at the rung, failed for good."""
    run = study.reader(unit)
    if run.error is not None and run.next_step < rung:
        return True
    ids = study.evaluation_ids(unit.setup).values()
    return any(run.evaluation_error(each, rung) is not None for each in ids)
