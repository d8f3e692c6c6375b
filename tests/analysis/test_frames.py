"""DataFrames of a study: typed columns, the numbers of the run directories, nothing where nothing
is known.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis import frames
from analysis.table.model import results_table
from orchestrator.records.slices import ResponseText
from orchestrator.records.writer import RunWriter, write_slice
from orchestrator.selection.loading import load_study
from orchestrator.selection.study import Study
from tests.fake_runs import QUICKSTART, quickstart, units_of, write_run
from tests.sweeps import ROOT

EVERY = [
    frames.trials,
    frames.problem_counts,
    frames.texts,
    frames.metrics,
    frames.rollouts,
    frames.timings,
]


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Two finished trials of the quickstart, the second with a clock."""
    loaded = quickstart()
    for method, correct in (("vanilla", [1, 2]), ("veto", [4, 3])):
        (unit,) = units_of(loaded[1], method)[:1]
        write_run(tmp_path, loaded[0], unit, {20: correct, 40: [3, 3]}, steps=60)
    with closing(RunWriter(tmp_path, unit.id)) as run:
        run.append_timing({"step": 0, "phase": "train", "rollout": 1.5})
    return Study(*loaded, tmp_path)


def test_trials_have_a_row_for_each_unit_and_nullable_types(study: Study) -> None:
    frame: Any = frames.trials(study)
    assert list(frame["unit"]) == [unit.id for unit in study.units]
    assert dict(frame.dtypes.astype(str).iloc[[0, 5, 9, 10]]) == {
        "unit": "string", "seed": "Int64", "best_step": "Int64", "avg": "Float64",
    }  # fmt: skip
    veto = frame[frame["method"] == "veto"].iloc[0]
    assert (veto["best_step"], veto["avg"], veto["arithmetic_short"]) == (20, 87.5, 100.0)
    assert veto["seconds"] == 1.5
    assert frame[frame["method"] == "trust_region"]["avg"].isna().all()


def test_problem_counts_give_the_scores_of_the_trials(study: Study) -> None:
    counts: Any = frames.problem_counts(study)
    assert set(counts["samples"]) == {"selection"}
    shares = (
        (counts["correct"] / counts["n"])
        .groupby([counts["method"], counts["step"], counts["benchmark"]])
        .mean()
    )
    assert 100 * shares["veto", 20, "arithmetic_short"] == 100.0
    assert 100 * shares["vanilla", 20].mean() == 37.5


def test_texts_have_a_row_for_each_kept_response(study: Study) -> None:
    assert len(frames.texts(study)) == 0
    (unit,) = units_of(study.units, "veto")
    evaluation_id = study.evaluation_ids(unit.setup)["arithmetic_short"]
    kept = ResponseText("p", 0, "1+1=\n", "2", "no box", None, False, True, False, 9)
    run = study.reader(unit)
    (part,) = run.slices(evaluation_id, 20)
    records = run.slice_records(evaluation_id, 20, part)
    write_slice(run, evaluation_id, 20, part, records, [kept], replace=True)
    found: Any = frames.texts(study)
    assert list(found["method"]) == ["veto"]
    assert (found["step"][0], found["samples"][0], found["text"][0]) == (20, "selection", "no box")
    assert found["answer"].isna().all()
    assert found["truncated"][0]
    assert not found["right"][0]


def test_logs_name_their_unit_and_times_are_utc(study: Study) -> None:
    metrics: Any = frames.metrics(study)
    assert set(metrics["method"]) == {"vanilla", "veto"}
    timings: Any = frames.timings(study)
    (clocked,) = timings.to_dict("records")
    assert (clocked["method"], clocked["rollout"]) == ("veto", 1.5)
    assert clocked["at"].tzinfo is not None


@pytest.mark.parametrize("frame_of", EVERY)
def test_before_anything_ran_frames_are_empty_and_have_their_columns(
    frame_of: Callable[[Study], pd.DataFrame], tmp_path: Path
) -> None:
    study = Study(*quickstart(), tmp_path)
    frame = frame_of(study)
    assert {"unit", "setup", "method", "setting", "seed"} <= set(frame.columns)
    assert len(frame) == (len(study.units) if frame_of is frames.trials else 0)


def test_evidence_is_the_csv_form_before_it_is_rounded(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    table = results_table(study)
    frame: Any = frames.evidence(table)
    (cell,) = frame[(frame["method"] == "veto") & (frame["benchmark"] == "avg")].to_dict("records")
    assert (cell["pass_at_1"], cell["seeds"], cell["interval_over"]) == (87.5, 1, "problems")
    assert cell["ci_low"] < 87.5 < cell["ci_high"]
    assert pd.isna(cell["p_value"])
    assert frame[frame["method"] == "trust_region"]["ci_low"].isna().all()
    out = io.BytesIO()
    frame.to_parquet(out)
    pd.testing.assert_frame_equal(pd.read_parquet(out), frame)


def test_a_study_is_loaded_as_the_command_line_does(tmp_path: Path) -> None:
    path = ROOT / "experiments" / "quickstart.yaml"
    study = load_study(path, ["training.steps=20"], runs=tmp_path, methods="vanilla,TRB")
    assert set(study.experiment.methods) == {"vanilla", "trust_region"}
    assert study.invocation.words == (
        str(path), "training.steps=20", "--methods", "vanilla,TRB", "--runs", str(tmp_path),
    )  # fmt: skip


def test_the_example_of_the_page_runs(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRB_RUNS", str(study.runs))
    page = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(example.replace('"quickstart"', repr(str(QUICKSTART))), names)  # the tests' own
    assert set(names["loss"].columns) == {"vanilla", "veto"}
