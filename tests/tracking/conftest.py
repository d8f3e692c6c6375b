"""A made-up sweep for each test of a tracker."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config import Experiment
from orchestrator.experiment.units import Unit
from tests.fake_runs import quickstart
from tests.tracking.sweep import Sweep


@pytest.fixture(scope="session")
def loaded() -> tuple[Experiment, list[Unit]]:
    return quickstart()


@pytest.fixture
def sweep(tmp_path: Path, loaded: tuple[Experiment, list[Unit]]) -> Sweep:
    return Sweep(tmp_path / "runs", *loaded)
