"""Small benches, as `trb doctor --gpu --small` makes them."""

from __future__ import annotations

from pathlib import Path

from orchestrator.checks.bench import Bench, largest_pair, small_version
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import expand
from orchestrator.models.locate import EXPERIMENTS
from orchestrator.selection.study import Study


def study(folder: Path, *overrides: str) -> Study:
    """The paper's sweep, over runs in `folder`."""
    experiment = load_experiment(EXPERIMENTS / "paper.yaml", list(overrides))
    return Study(experiment, expand(experiment, folder), folder)


def small_bench(folder: Path, *overrides: str) -> Bench:
    """Tiny models for CPUs, without overrides with the torch engine, which every install has."""
    chosen = overrides or ("engine.sampler=torch", "engine.trainer=torch")
    return small_version(largest_pair(study(folder, *chosen), folder), gpu=False)
