"""The sweep that nothing disturbs: every unit in this process, one after the other, its roles with it.

What Ray's scheduling, actors and recovery must come out as, byte for byte, at a small part of their time.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from orchestrator.config import Experiment
from orchestrator.engines.interface import ModelFolder
from orchestrator.experiment.identity import model_identity
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.made_models import folder_of
from orchestrator.experiment.units import Unit, expand
from orchestrator.models.embedded import build
from orchestrator.monitor.status import missing_units
from orchestrator.records.provenance import provenance
from orchestrator.records.writer import RunWriter
from orchestrator.selection.retention import prune
from orchestrator.selection.samples_wanted import wants
from orchestrator.selection.scores import decided_by_family
from orchestrator.selection.study import Study
from orchestrator.sweep.prepare import prepare, worker_spec
from orchestrator.trial.assignment import Assignment
from orchestrator.trial.loop import run_unit
from orchestrator.workers.roles import inline_roles
from orchestrator.workers.spec import resolved

Pairs = dict[str, tuple[ModelFolder, ModelFolder]]


def run_without_ray(path: Path, runs: Path, *overrides: str) -> None:
    """Run what is missing of an experiment: training, then the samples that its results make wanted."""
    experiment = load_experiment(path, overrides)
    pairs = made_here(experiment, runs)
    study = Study(experiment, expand(experiment, runs), runs)
    while missing := missing_units(study):
        for unit in missing:
            run_one(study, unit, pairs)
        prune(study)


def made_here(experiment: Experiment, runs: Path) -> Pairs:
    """Student and teacher of each setup; those that are not there are made in this process."""
    for setup in experiment.setups.values():
        for model in (setup.student, setup.teacher):
            folder = folder_of(model, setup, runs)
            if not folder.is_dir():
                build(model_identity(model, setup), folder)
    return prepare(experiment.setups, runs, lambda *_: None)


def run_one(study: Study, unit: Unit, pairs: Pairs) -> None:
    """What a process of the sweep does with a unit."""
    spec = worker_spec(unit, study.experiment, study.runs, pairs[unit.setup])
    prunes = not decided_by_family(study.experiment, unit)
    assignment = Assignment(spec, wants(study).get(unit.id, {}), prunes)
    roles = inline_roles(spec)
    with closing(RunWriter(study.runs, unit.id)) as run:
        try:
            run.describe(resolved(spec), provenance, spec.trained_from)
            for _ in run_unit(assignment, run, roles):
                pass
        finally:
            roles.close()
