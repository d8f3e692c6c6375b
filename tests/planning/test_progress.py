"""What `trb plan` takes as done, and why it says that a unit would run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.config import Experiment
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import Unit, expand
from orchestrator.planning import progress
from orchestrator.planning.plan import Done
from orchestrator.selection.study import Study
from tests.fake_runs import QUICKSTART, SHIPPED, units_of, write_run

GENERATIONS = 4  # of a record that `write_run` writes


def quickstart(*overrides: str) -> tuple[Experiment, list[Unit]]:
    experiment = load_experiment(QUICKSTART, overrides)
    return experiment, expand(experiment)


def note(runs: Path, unit: Unit) -> None:
    """A directory of which only the configuration is there."""
    (runs / unit.id).mkdir(parents=True)
    (runs / unit.id / "config.json").write_text(json.dumps({"unit": dataclasses.asdict(unit)}))


def test_steps_and_samples_that_are_there(tmp_path: Path) -> None:
    experiment, units = quickstart()
    vanilla, veto = units_of(units, "vanilla")[0], units_of(units, "veto")[0]
    write_run(tmp_path, experiment, vanilla, {20: [1, 2], 40: [2, 2], 60: [3, 3]}, steps=60)
    write_run(tmp_path, experiment, veto, {20: [1, 2]}, steps=20, done=False)
    done = progress.done_of(Study(experiment, units, tmp_path))
    assert done[vanilla.id] == Done(
        60, 6 * GENERATIONS, selected=True, rescored=False, complete=False
    )
    assert done[veto.id] == Done(20, 2 * GENERATIONS)
    assert done[units_of(units, "skd")[0].id] == Done()


def test_a_family_without_fresh_samples_is_complete_where_none_are_asked_for(
    tmp_path: Path,
) -> None:
    experiment, units = quickstart("evaluation.rescore=false")
    vanilla = units_of(units, "vanilla")[0]
    write_run(tmp_path, experiment, vanilla, {20: [1, 2], 40: [2, 2], 60: [3, 3]}, steps=60)
    assert progress.done_of(Study(experiment, units, tmp_path))[vanilla.id].complete


def test_no_runs_folder_holds_nothing(tmp_path: Path) -> None:
    experiment, units = quickstart()
    assert progress.done_of(Study(experiment, units, tmp_path / "gone")) == {}
    assert {
        reason.why for reason in progress.reasons(Study(experiment, units, tmp_path / "gone"))
    } >= {"missing"}


def test_why_each_unit_would_run(tmp_path: Path) -> None:
    experiment, units = quickstart()
    vanilla, veto, skd = (units_of(units, name)[0] for name in ("vanilla", "veto", "skd"))
    write_run(tmp_path, experiment, vanilla, {20: [1, 2], 40: [2, 2], 60: [3, 3]}, steps=60)
    write_run(tmp_path, experiment, veto, {20: [1, 2]}, steps=20, done=False)
    write_run(tmp_path, experiment, skd, {20: [1, None], 60: [1, 1]}, steps=60)
    why = {
        reason.unit.id: reason.why
        for reason in progress.reasons(Study(experiment, units, tmp_path))
    }
    assert why[vanilla.id].startswith(
        "fresh samples of the selected checkpoint wanted: arithmetic_short n=4"
    )
    assert why[veto.id] == "training incomplete: step 20 of 60"
    assert why[skd.id].startswith("samples wanted: arithmetic_long n=4 at step 20")
    stage, trial = units_of(units, "sft")[0], units_of(units, "sft_warmup")[0]
    assert why[trial.id] == f"missing; waits for {stage.id}"


def test_the_nearest_directory_and_the_fields_that_differ(tmp_path: Path) -> None:
    _, far = quickstart("training.optimizer.lr=0.3", "training.top_k=3", "training.steps=7")
    _, near = quickstart("training.optimizer.lr=0.25")
    for units in (far, near):
        note(tmp_path, units_of(units, "vanilla")[0])
    experiment, units = quickstart()
    lr = experiment.setups["arithmetic"].training.optimizer.lr
    found = {
        reason.unit.id: reason for reason in progress.reasons(Study(experiment, units, tmp_path))
    }
    reason = found[units_of(units, "vanilla")[0].id]
    assert reason.nearest == units_of(near, "vanilla")[0].id
    assert reason.differences == (f"training.optimizer.lr: 0.25 there, {lr} here",)
    assert found[units_of(units, "skd")[0].id].nearest is None


def test_damaged_neighbours_are_passed_over(tmp_path: Path) -> None:
    experiment, units = quickstart()
    for name, text in (
        ("torn", "{"),
        ("list", "[]"),
        ("other", '{"unit": 3}'),
        ("bare", '{"unit": {}}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    assert all(
        reason.nearest is None for reason in progress.reasons(Study(experiment, units, tmp_path))
    )


@pytest.mark.parametrize("width", ["60", "80"])
def test_the_command_says_why(
    width: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    _, near = quickstart("training.optimizer.lr=0.25")
    note(tmp_path, units_of(near, "vanilla")[0])
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(QUICKSTART), "--why", "--runs", str(tmp_path)])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert "training.optimizer.lr: 0.25 there" in " ".join(out.split())
    assert "…" not in out


def test_the_plan_names_data_files_that_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRB_DATA_DIR", raising=False)
    smoke = SHIPPED / "math-smoke.yaml"
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "aime24.jsonl").touch()
    with pytest.raises(SystemExit):
        main(["plan", str(smoke), f"data_dir={tmp_path}", "--runs", str(tmp_path / "runs")])
    out = " ".join(capsys.readouterr().out.split())
    files = "train/math_train.jsonl, train/gsm8k_train_sample.jsonl, eval/gsm8k_test.jsonl"
    assert f"Not in {tmp_path} yet: {files}" in out
    assert f"`trb data fetch {tmp_path}`" in out
    assert "aime24" not in out
