"""Checkpoints that are kept under `runtime.keep: best`.

A trial whose own best checkpoint is all that can be selected drops the others itself. In a race, and where seeds are
averaged, that depends on other trials: all checkpoints stay until the family's selection is final, and those
that are not the best of their setting are dropped here.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from orchestrator.config import Experiment, Setup
from orchestrator.experiment.units import Unit
from orchestrator.records.lease import LeaseHeld
from orchestrator.records.rundir import RunReader
from orchestrator.records.writer import RunWriter
from orchestrator.selection import scores
from orchestrator.selection.wants import standing


def prune(experiment: Experiment, units: list[Unit], runs: Path) -> None:
    """Drop what the final selections leave behind; nothing under `keep: all`. What another process holds stays."""
    if experiment.runtime.keep != "best":
        return
    for family in scores.families(units):
        setup = experiment.setups[family[0][0].setup]
        if family[0][0].kind != "trial" or not scores.decided_by_family(experiment, family[0][0]):
            continue
        stands = standing(setup, family, runs)
        if stands.settled and not stands.wants:
            for setting in family:
                _keep_best(setup, setting, runs)


def _keep_best(setup: Setup, setting: scores.Setting, runs: Path) -> None:
    best = scores.best_of(scores.candidates(setup, [setting], runs))
    if best is None:
        return
    for unit in setting:
        if set(RunReader(runs, unit.id).checkpoints()) - {best.step}:
            try:
                with closing(RunWriter(runs, unit.id)) as run:
                    run.drop_checkpoints({best.step})
            except LeaseHeld:
                continue
