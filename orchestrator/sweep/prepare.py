"""Prepares a sweep: fetches data and makes missing models, the embedded ones in parallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from orchestrator.config import Experiment, Setup
from orchestrator.data.benchmarks import lacking
from orchestrator.data.sources import SOURCES, fetch
from orchestrator.engines.interface import ModelFolder
from orchestrator.experiment.methods import supervised_updates
from orchestrator.experiment.units import Unit
from orchestrator.models import locate
from orchestrator.models.locate import (
    check_passes,
    check_same_tokens,
    checkpoint_of,
)
from orchestrator.models.make import (
    Reporter,
    make,
    must_make,
)
from orchestrator.records.rundir import RunReader
from orchestrator.workers.spec import Pairs, WorkerSpec


def fetch_data(experiment: Experiment, say: Callable[[str], None]) -> None:
    """Fetch the declared data files that the data folder lacks and `data.sources` knows.

    `say` gets a line for each. Never replaces a file of the user. Raises UserError if a file cannot
    be fetched.
    """
    if experiment.data_dir is None:
        return
    folder = Path(experiment.data_dir)
    absent = lacking(experiment.setups.values(), folder)
    keys = [key for key, source in SOURCES.items() if absent.get(source.file) == source.sha256]
    for line in fetch(folder, keys):
        say(line)


def check_passes_of(name: str, role: str, setup: Setup, checkpoint: ModelFolder) -> None:
    """Check the passes of any model but those of the embedded world, which tests compare."""
    recipe = getattr(setup, role).recipe
    if recipe is None or not recipe.is_embedded:
        check_passes(f"{name}.{role}", Path(checkpoint.path), setup.context)


def prepare(
    setups: Mapping[str, Setup], runs: Path, report: Reporter, data_dir: str | None = None
) -> Pairs:
    """Make missing models; return student and teacher of each setup.

    `report` gets a role and its progress, see `make.make`.
    """
    pairs: dict[str, tuple[ModelFolder, ModelFolder]] = {}
    for name, setup in setups.items():
        missing: list[str] = []
        for role in ("student", "teacher"):
            if must_make(getattr(setup, role), setup, runs):
                missing.append(role)
        make(setup, missing, runs, report, data_dir)
        locate.check_trained_from(setup, runs)
        pairs[name] = (
            checkpoint_of(setup.student, setup, runs),
            checkpoint_of(setup.teacher, setup, runs),
        )
        if missing:  # then `check_models` had no pair to compare
            check_same_tokens(name, *pairs[name])
        for role in missing:
            check_passes_of(name, role, setup, checkpoint_of(getattr(setup, role), setup, runs))
    return pairs


def worker_spec(
    unit: Unit,
    experiment: Experiment,
    runs: Path,
    pair: tuple[ModelFolder, ModelFolder],
) -> WorkerSpec:
    """Spec of a unit's roles; a trial after supervised updates starts from its stage's checkpoint."""
    student, teacher = pair
    initial = student
    updates = supervised_updates(unit.method, unit.knobs)
    if updates is not None:
        stage = RunReader(runs, unit.depends_on[0])
        initial = ModelFolder(
            str(stage.checkpoint_path(updates)), stage.checkpoint_files(updates), stage.remedy
        )
    setup = experiment.setups[unit.setup]
    return WorkerSpec(
        unit, setup, experiment.runtime, student, teacher, initial, experiment.data_dir
    )
