"""Finds units with damaged or lost files.

Checks the small files of each unit. Rollouts, which may be gigabytes, and checkpoints are verified
by their readers.
"""

from __future__ import annotations

from orchestrator.experiment.units import Unit
from orchestrator.records.files import Damaged
from orchestrator.selection import scores
from orchestrator.selection.samples_wanted import family_state
from orchestrator.selection.study import Study


def damaged_units(study: Study) -> dict[str, str]:
    """Unit id → a line that names the file and the remedy."""
    damages: dict[str, str] = {}
    for unit in study.units:
        try:
            _read_all(study, unit)
        except Damaged as error:
            damages[unit.id] = str(error)
    readable = [unit for unit in study.units if unit.id not in damages]
    return damages | _lost_checkpoints(study.with_units(readable))


def refuse_damaged(study: Study) -> None:
    """Raise Damaged with the first damaged unit's line; `trb status` shows all lines."""
    lines = list(damaged_units(study).values())
    if lines:
        others = f" (and {len(lines) - 1} more: trb status)" if lines[1:] else ""
        raise Damaged(f"{lines[0]}{others}")


def _read_all(study: Study, unit: Unit) -> None:
    run = study.reader(unit)
    run.last_metrics()
    run.check_documents()
    run.checkpoints()
    for evaluation_ids in (
        study.evaluation_ids(unit.setup),
        study.fresh_evaluation_ids(unit.setup),
    ):
        for evaluation_id in evaluation_ids.values():
            for step in run.evaluated_steps(evaluation_id):
                scores.tally(run, evaluation_id, step)


def _lost_checkpoints(study: Study) -> dict[str, str]:
    """Find units that lost a checkpoint which still wants samples.

    A checkpoint that has all its samples may be gone. Only its family's state tells whether more
    are wanted, and computing that raises Damaged if they are.
    """
    losers: set[str] = set()
    for unit in study.units:
        run = study.reader(unit)
        if not set(run.committed_checkpoints()) <= set(run.checkpoints()):
            losers.add(unit.id)
    damages: dict[str, str] = {}
    if not losers:
        return damages
    for family in study.families():
        try:
            family_state(study, family)
        except Damaged as error:
            for setting in family:
                for unit in setting:
                    if unit.id in losers:
                        damages[unit.id] = str(error)
    return damages
