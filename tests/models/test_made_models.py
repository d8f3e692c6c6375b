"""Models made by recipes: what is known of them when their folder is not there."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import expand
from orchestrator.models.made_models import trained_from
from orchestrator.records.writer import RunWriter
from tests.fake_runs import fake_models
from tests.sweeps import write_experiment


@pytest.mark.parametrize("damaged", [False, True])
def test_run_directories_that_were_copied_without_the_models_keep_their_ids(
    tmp_path: Path, damaged: bool
) -> None:
    """A recipe of one's own, which is not shipped; a damaged directory is passed over."""
    runs = tmp_path / "runs"
    experiment = load_experiment(write_experiment(tmp_path, {"vanilla": {}}))
    assert all(unit.provisional for unit in expand(experiment, runs))
    fake_models(experiment, runs)
    units = expand(experiment, runs)
    assert not any(unit.provisional for unit in units)
    for unit in units:
        with closing(RunWriter(runs, unit.id)) as run:
            run.describe(
                {"unit": {"identity": unit.identity}},
                dict,
                trained_from(experiment.setups[unit.setup], runs),
            )
            run.commit(0)
    shutil.rmtree(runs / "models")
    if damaged:
        (runs / units[0].id / "config.json").write_text("{")
    assert [unit.id for unit in expand(experiment, runs)] == [unit.id for unit in units]
    assert all(unit.provisional for unit in expand(experiment, tmp_path / "other"))
