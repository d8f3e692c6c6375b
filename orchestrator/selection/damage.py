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
    return damages | _lost_checkpoints(
        study.with_units([unit for unit in study.units if unit.id not in damages])
    )


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
    """Find units that lack a checkpoint which still wants samples; fully evaluated checkpoints may
    go.
    """
    losers = {unit.id for unit in study.units if _lacks_a_checkpoint(study, unit)}
    damages: dict[str, str] = {}
    for family in study.families() if losers else []:
        try:
            family_state(study, family)
        except Damaged as error:
            members = {unit.id for setting in family for unit in setting}
            damages |= dict.fromkeys(losers & members, str(error))
    return damages


def _lacks_a_checkpoint(study: Study, unit: Unit) -> bool:
    run = study.reader(unit)
    return not set(run.committed_checkpoints()) <= set(run.checkpoints())
