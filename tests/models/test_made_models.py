"""Models made by recipes: what is known of them when their folder is not there."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import expand
from orchestrator.models.made_models import trained_from
from orchestrator.models.making import put_in_place
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


def test_of_two_processes_that_make_a_model_the_first_one_puts_it_in_place(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text(name)
        put_in_place(tmp_path / name, folder)
    assert (folder / "model.safetensors").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "gone", tmp_path / "other")
