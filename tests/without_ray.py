"""The sweep that nothing disturbs: every unit in this process, one after the other, its roles with
it.

What Ray's scheduling, actors and recovery must come out as, byte for byte, at a small part of their
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from orchestrator.config import Experiment
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import Unit, expand
from orchestrator.models.identity import model_identity
from orchestrator.models.locate import folder_of
from orchestrator.models.recipes import build_embedded
from orchestrator.records.provenance import provenance
from orchestrator.records.writer import RunWriter
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.retention import prune
from orchestrator.selection.study import Study
from orchestrator.sweep.prepare import prepare, worker_spec
from orchestrator.trial.evaluation_loop import study_evaluator
from orchestrator.trial.training_loop import run_unit
from orchestrator.workers.roles import Inline
from orchestrator.workers.spec import Pairs, resolved


def run_without_ray(path: Path, runs: Path, *overrides: str) -> None:
    """Run what is missing of an experiment: training, then the samples that its results make
    wanted.
    """
    experiment = load_experiment(path, overrides)
    pairs = made_here(experiment, runs)
    study = Study(experiment, expand(experiment, runs), runs)
    seen: Sequence[Unit] = ()
    while (
        units := with_confirmation(study).units
    ) != seen:  # samples of a round may make further units wanted
        seen = units
        for unit in units:
            if not study.reader(unit).trained:
                train(study, unit, pairs)
        evaluator = study_evaluator(study, pairs, attempts=1)
        for _ in evaluator.slices():
            prune(study)
        evaluator.close()


def made_here(experiment: Experiment, runs: Path) -> Pairs:
    """Student and teacher of each setup; those that are not there are made in this process."""
    for setup in experiment.setups.values():
        for model in (setup.student, setup.teacher):
            if model.recipe is not None and not (folder := folder_of(model, setup, runs)).is_dir():
                build_embedded(model_identity(model, setup), folder)
    return prepare(experiment.setups, runs, lambda *_: None)


def train(study: Study, unit: Unit, pairs: Pairs) -> None:
    """What a process of the sweep does with a unit; of the untrained student there is nothing to
    train.
    """
    spec = worker_spec(unit, study.experiment, study.runs, pairs[unit.setup])
    with closing(RunWriter(study.runs, unit.id)) as run:
        run.describe(resolved(spec), provenance, spec.trained_from)
        if unit.is_untrained:
            run.finish()
            return
        roles = Inline(spec)
        try:
            for _ in run_unit(spec, run, roles):
                pass
        finally:
            roles.close()
