"""Checkpoints that are kept under `runtime.keep: best`.

A trial whose own best checkpoint is all that can be selected drops the others itself. In a race, and where seeds are
averaged, that depends on other trials: all checkpoints stay until the family's selection is final, and those
that are not the best of their setting are dropped here.
"""

from __future__ import annotations

from contextlib import closing

from orchestrator.experiment.units import Setting
from orchestrator.records.lease import LeaseHeld
from orchestrator.records.writer import RecordWriter
from orchestrator.selection import scores
from orchestrator.selection.samples_wanted import family_state
from orchestrator.selection.study import Study


def prune(study: Study) -> None:
    """Drop what the final selections leave behind.

    Does nothing under `keep: all`, and skips units that another process is running.
    """
    if study.experiment.runtime.keep != "best":
        return
    for family in study.families():
        first = family[0][0]
        if not first.is_trial or not scores.decided_by_family(study.experiment, first):
            continue
        state = family_state(study, family)
        if state.settled and not state.wants:
            for setting in family:
                _keep_best(study, setting)


def _keep_best(study: Study, setting: Setting) -> None:
    best = scores.best_of(scores.candidates(study, [setting]))
    if best is None:
        return
    for unit in setting:
        if set(study.reader(unit).checkpoints()) - {best.step}:
            try:
                with closing(RecordWriter(study.runs, unit.id)) as run:
                    run.drop_checkpoints({best.step})
            except LeaseHeld:
                continue
