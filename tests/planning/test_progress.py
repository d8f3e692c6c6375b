"""What `trb plan` takes as done, and why it says that a unit would run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from orchestrator.experiment.units import Unit
from orchestrator.planning import progress
from orchestrator.planning.plan import Done
from orchestrator.selection.study import Study
from tests.fake_runs import QUICKSTART, SHIPPED, quickstart, units_of, write_run
from tests.planning.plans import Loaded
from tests.sweeps import trb_refuses, trb_shows

GENERATIONS = 4  # of a record that `write_run` writes


def note(runs: Path, unit: Unit) -> None:
    """A directory of which only the configuration is there."""
    (runs / unit.id).mkdir(parents=True)
    (runs / unit.id / "config.json").write_text(json.dumps({"unit": dataclasses.asdict(unit)}))


def why_of(runs: Path, loaded: Loaded) -> dict[str, progress.Reason]:
    return {reason.unit.id: reason for reason in progress.reasons(Study(*loaded, runs))}


def first(loaded: Loaded, method: str) -> Unit:
    return units_of(loaded[1], method)[0]


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The output of `trb plan` in one line."""
    return " ".join(trb_shows(capsys, "plan", *words).split())


@pytest.mark.parametrize("rescore", [True, False])
def test_steps_and_samples_that_are_there(tmp_path: Path, rescore: bool) -> None:
    loaded = quickstart(f"evaluation.rescore={str(rescore).lower()}")
    vanilla, veto = first(loaded, "vanilla"), first(loaded, "veto")
    write_run(tmp_path, loaded[0], vanilla, {20: [1, 2], 40: [2, 2], 60: [3, 3]}, steps=60)
    write_run(tmp_path, loaded[0], veto, {20: [1, 2]}, steps=20, done=False)
    done = progress.done_of(Study(*loaded, tmp_path))
    # Without fresh samples that are asked for, a family is complete once it is settled.
    assert done[vanilla.id] == Done(60, 6 * GENERATIONS, True, not rescore, not rescore)
    assert done[veto.id] == Done(20, 2 * GENERATIONS)
    assert done[first(loaded, "skd").id] == Done()


def test_no_runs_folder_holds_nothing(tmp_path: Path) -> None:
    study = Study(*quickstart(), tmp_path / "gone")
    assert progress.done_of(study) == {}
    assert "missing" in {reason.why for reason in progress.reasons(study)}


def test_why_each_unit_would_run(tmp_path: Path) -> None:
    loaded = quickstart("evaluation.rescore=true")
    vanilla, veto, skd = (first(loaded, name) for name in ("vanilla", "veto", "skd"))
    write_run(tmp_path, loaded[0], vanilla, {20: [1, 2], 40: [2, 2], 60: [3, 3]}, steps=60)
    write_run(tmp_path, loaded[0], veto, {20: [1, 2]}, steps=20, done=False)
    write_run(tmp_path, loaded[0], skd, {20: [1, None], 60: [1, 1]}, steps=60)
    found = why_of(tmp_path, loaded)
    fresh = "fresh samples of the selected checkpoint wanted: arithmetic_short n=4"
    assert found[vanilla.id].why.startswith(fresh)
    assert found[veto.id].why == "training incomplete: step 20 of 60"
    assert found[skd.id].why.startswith("samples wanted: arithmetic_long n=4 at step 20")
    waits = f"missing; waits for {first(loaded, 'sft').id}"
    assert found[first(loaded, "sft_warmup").id].why == waits


def test_the_nearest_directory_and_the_fields_that_differ(tmp_path: Path) -> None:
    far = quickstart("training.optimizer.lr=0.3", "training.top_k=3", "training.steps=7")
    near, loaded = quickstart("training.optimizer.lr=0.25"), quickstart()
    for others in (far, near):
        note(tmp_path, first(others, "vanilla"))
    lr = loaded[0].setups["arithmetic"].training.optimizer.lr
    found = why_of(tmp_path, loaded)
    reason = found[first(loaded, "vanilla").id]
    assert reason.nearest == first(near, "vanilla").id
    assert reason.differences == (f"training.optimizer.lr: 0.25 there, {lr} here",)
    assert found[first(loaded, "skd").id].nearest is None


@pytest.mark.parametrize("text", ["{", "[]", '{"unit": 3}', '{"unit": {}}'])
def test_damaged_neighbours_are_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text(text)
    assert not any(reason.nearest for reason in why_of(tmp_path, quickstart()).values())


@pytest.mark.parametrize("width", ["60", "80"])
def test_the_command_says_why(
    width: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    note(tmp_path, first(quickstart("training.optimizer.lr=0.25"), "vanilla"))
    out = plan(capsys, str(QUICKSTART), "--why", "--runs", str(tmp_path))
    assert "training.optimizer.lr: 0.25 there" in out
    assert "…" not in out


def test_the_plan_names_data_files_that_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRB_DATA_DIR", raising=False)
    smoke, runs = str(SHIPPED / "math-smoke.yaml"), str(tmp_path / "runs")
    there = tmp_path / "eval" / "aime24.jsonl"
    there.parent.mkdir()
    there.touch()
    complaint = trb_refuses(capsys, "plan", smoke, f"data_dir={tmp_path}", "--runs", runs)
    assert complaint.startswith(f"trb: {there}: sha256 "), "a file that is there is read"
    there.unlink()
    out = plan(capsys, smoke, f"data_dir={tmp_path}", "--runs", runs)
    files = "train/math_train.jsonl, train/gsm8k_train_sample.jsonl, eval/gsm8k_test.jsonl"
    assert f"`trb data fetch {tmp_path}`" in out
    assert f"Not in {tmp_path} yet: {files}" in out
