"""Which units have files that are not what was written.

What is read of every unit now and then is read here: not the rollouts, which may be gigabytes, and no checkpoint. Those
are verified by whoever reads them.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.config import Experiment, Setup
from orchestrator.experiment import evaluations
from orchestrator.experiment.units import Unit
from orchestrator.records.files import Damaged
from orchestrator.records.rundir import RunReader
from orchestrator.selection import scores
from orchestrator.selection.wants import standing


def damaged_units(experiment: Experiment, units: list[Unit], runs: Path) -> dict[str, str]:
    """Unit id → the line that names the file and the remedy."""
    found: dict[str, str] = {}
    for unit in units:
        try:
            _read_all(unit, experiment.setups[unit.setup], runs)
        except Damaged as error:
            found[unit.id] = str(error)
    return found | _lost_checkpoints(experiment, [unit for unit in units if unit.id not in found], runs)


def refuse_damaged(experiment: Experiment, units: list[Unit], runs: Path) -> None:
    """Raise Damaged if a unit is."""
    for line in damaged_units(experiment, units, runs).values():
        raise Damaged(line)


def _read_all(unit: Unit, setup: Setup, runs: Path) -> None:
    run = RunReader(runs, unit.id)
    run.metrics()
    run.timing()
    run.attempts()
    run.document("data.json")
    run.checkpoints()
    if run.started:
        run.config()
        run.provenance()
    for evaluation_ids in (evaluations.evaluation_ids(setup), evaluations.fresh_evaluation_ids(setup)):
        for evaluation_id in evaluation_ids.values():
            for step in run.evaluated_steps(evaluation_id):
                scores.tally(run, evaluation_id, step)


def _lost_checkpoints(experiment: Experiment, units: list[Unit], runs: Path) -> dict[str, str]:
    """Units that lack a checkpoint of which samples are still wanted; one that was evaluated to the end may go."""
    losers = {unit.id for unit in units if _lacks_a_checkpoint(unit, runs)}
    found: dict[str, str] = {}
    for family in scores.families(units) if losers else []:
        try:
            standing(experiment.setups[family[0][0].setup], family, runs)
        except Damaged as error:
            members = {unit.id for setting in family for unit in setting}
            found |= dict.fromkeys(losers & members, str(error))
    return found


def _lacks_a_checkpoint(unit: Unit, runs: Path) -> bool:
    run = RunReader(runs, unit.id)
    return not set(run.committed_checkpoints()) <= set(run.checkpoints())
