"""Drops the checkpoints that no selection needs any more, under `runtime.keep: best`.

In a race, or with scores averaged over seeds, other trials decide which checkpoints want samples:
all checkpoints stay until the family's selection is final, then the best stays. Otherwise a trial
selects among its own checkpoints, and keeps its best once it wants no more samples. A confirming
unit keeps the step that it confirms, and one that a search stopped the step at which it can go on.
A trial in training keeps all its checkpoints.
"""

from __future__ import annotations

import itertools
from contextlib import closing

from orchestrator.errors import LeaseHeld
from orchestrator.experiment.units import Setting
from orchestrator.records.writer import RecordWriter
from orchestrator.selection import scores
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.samples_wanted import family_state
from orchestrator.selection.study import Study


def prune(study: Study) -> None:
    """Drop the checkpoints that final selections do not need.

    Does nothing under `keep: all`, and skips units that another process is running.
    """
    if study.experiment.runtime.keep != "best":
        return
    study = with_confirmation(study)
    for family in study.families():
        first = family[0][0]
        if not first.is_trial:
            continue
        state = family_state(study, family)
        for unit in filter(study.is_stopped, itertools.chain(*family)):
            if unit.id not in state.wants:
                _keep(study, [unit], study.halved[unit.id].goal)
        final: list[Setting] = []
        if scores.decided_by_family(study.experiment, first):
            if state.settled and not state.wants:
                final = [setting for setting in family if not study.is_stopped(setting[0])]
        else:
            # Fresh samples go to the selected checkpoint, which stays anyway: only the samples that
            # select (repetition 0) make a trial keep the others.
            wanting: set[str] = set()
            for unit_id, samplings in state.wants.items():
                if any(sampling.repetition == 0 for sampling in samplings):
                    wanting.add(unit_id)
            for (unit,) in family:
                if study.reader(unit).trained and unit.id not in wanting:
                    final.append([unit])
        for setting in final:
            best = scores.best_of(scores.scored_checkpoints(study, [setting]))
            if best is not None:
                _keep(study, setting, best.step)
    for unit in study.units:
        if unit.id in study.confirming and study.reader(unit).trained:
            _keep(study, [unit], study.confirming[unit.id])


def _keep(study: Study, setting: Setting, step: int) -> None:
    """Drop all checkpoints of a setting but one; a unit that lacks this one keeps its others."""
    for unit in setting:
        checkpoints = set(study.reader(unit).checkpoints())
        if step in checkpoints and checkpoints - {step}:
            try:
                with closing(RecordWriter(study.runs, unit.id)) as run:
                    run.drop_checkpoints({step})
            except LeaseHeld:
                continue
