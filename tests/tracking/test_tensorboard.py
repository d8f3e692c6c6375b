"""TensorBoard's own reader finds every committed row once, whatever was killed or changed before."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from orchestrator.cli import main
from orchestrator.config import Experiment
from orchestrator.experiment.units import Unit
from orchestrator.records.rundir import RunReader
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from orchestrator.tracking import tracker
from orchestrator.tracking.follow import Mirror
from orchestrator.tracking.projection import Results, project
from orchestrator.tracking.tensorboard import open_tracker
from tests.fake_runs import QUICKSTART, metrics, quickstart, units_of, write_run
from tests.sweeps import ROOT, environment

Loaded = tuple[Experiment, list[Unit]]

MANY = 3000  # rows: enough that writing them can be killed on the way


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return quickstart("runtime.tracker=tensorboard")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def show(loaded: Loaded, runs: Path, unit: Unit, state: str = "running") -> None:
    """Show a unit by a tracker that knows of nothing that was shown before."""
    run = RunReader(runs, unit.id)
    shown = project(loaded[0].setups[unit.setup], unit, run, state, goes_on=True)
    open_tracker(Study(*loaded, runs)).show(shown)


def read(runs: Path, name: str) -> EventAccumulator:
    """The folder of a unit or of the results as TensorBoard reads it, without leaving values out."""
    reader = EventAccumulator(str(runs / ".tensorboard" / name), size_guidance={"scalars": 0})
    reader.Reload()
    return reader


def scalars(runs: Path, unit: Unit, tag: str) -> list[tuple[int, float]]:
    """Step and value of each scalar, in the order of the file."""
    return [(event.step, event.value) for event in read(runs, unit.id).Scalars(tag)]


def losses(steps: int) -> list[tuple[int, Any]]:
    return [(step, pytest.approx(metrics(step)["loss"])) for step in range(steps)]


def text(reader: EventAccumulator, tag: str) -> str:
    (event,) = reader.Tensors(tag)
    return event.tensor_proto.string_val[0].decode()


def event_file(runs: Path, unit: Unit) -> Path:
    """The file that holds the events of a unit."""
    (file,) = (file for file in (runs / ".tensorboard" / unit.id).iterdir() if file.stat().st_size)
    return file


# --- rows ---


def test_scalars_stand_at_their_steps_and_seeds_apart(tmp_path: Path) -> None:
    loaded, runs = quickstart("seeds=[0,1]"), tmp_path / "runs"
    first, second = units_of(loaded[1], "vanilla")
    write_run(runs, loaded[0], first, {20: [1, 2]}, steps=25, done=False)
    write_run(runs, loaded[0], second, {20: [3, 4]}, steps=40, done=False)
    for unit, steps, mean in ((first, 25, 0.375), (second, 40, 0.875)):
        show(loaded, runs, unit)
        assert scalars(runs, unit, "train/loss") == losses(steps)
        assert scalars(runs, unit, "eval/mean") == [(20, mean)]


def test_a_run_that_goes_on_gets_only_its_new_rows(loaded: Loaded, runs: Path) -> None:
    unit = units_of(loaded[1], "vanilla")[0]
    for steps in (10, 25, 25):
        write_run(runs, loaded[0], unit, {}, steps=steps, done=False)
        before = event_file(runs, unit).read_bytes() if steps == 25 else b""
        show(loaded, runs, unit)
        assert event_file(runs, unit).read_bytes().startswith(before)
        assert scalars(runs, unit, "train/loss") == losses(steps)


def test_rows_that_are_not_committed_are_not_shown(loaded: Loaded, runs: Path) -> None:
    unit = units_of(loaded[1], "vanilla")[0]
    write_run(runs, loaded[0], unit, {}, steps=10, done=False)
    with closing(RunWriter(runs, unit.id)) as run:
        run.append("metrics.jsonl", [metrics(10)])
        show(loaded, runs, unit)
    assert scalars(runs, unit, "train/loss") == losses(10)


def test_a_row_has_the_time_at_which_its_step_ended(
    loaded: Loaded, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = units_of(loaded[1], "vanilla")[0]
    write_run(runs, loaded[0], unit, {}, steps=3, done=False)
    with closing(RunWriter(runs, unit.id)) as run:
        for step in range(3):
            monkeypatch.setattr(time, "time", lambda step=step: 1000.0 + step)
            run.append_timing({"step": step, "phase": "train", "rollout": 1.0})
    show(loaded, runs, unit)
    shown = read(runs, unit.id).Scalars("train/loss")
    assert [event.wall_time for event in shown] == [1000.0, 1001.0, 1002.0]


def test_a_score_of_more_samples_takes_the_place_of_the_first(loaded: Loaded, runs: Path) -> None:
    unit = units_of(loaded[1], "vanilla")[0]
    for correct in ([1, 1], [4, 4]):
        write_run(runs, loaded[0], unit, {20: correct}, steps=40, done=False)
        show(loaded, runs, unit)
        assert scalars(runs, unit, "eval/mean") == [(20, correct[0] / 4)]
        assert scalars(runs, unit, "train/loss") == losses(40)


def test_a_reader_that_saw_a_file_before_its_replacement_has_no_row_twice(
    loaded: Loaded, runs: Path
) -> None:
    unit = units_of(loaded[1], "vanilla")[0]
    write_run(runs, loaded[0], unit, {20: [1, 1]}, steps=25, done=False)
    show(loaded, runs, unit)
    reader = read(runs, unit.id)
    write_run(runs, loaded[0], unit, {20: [4, 4]}, steps=30, done=False)
    show(loaded, runs, unit)
    reader.Reload()
    assert [event.step for event in reader.Scalars("train/loss")] == list(range(30))
    assert [event.value for event in reader.Scalars("eval/mean")] == [1.0]


# --- a unit as a session ---


def session(reader: EventAccumulator, tag: str) -> bytes:
    return reader.SummaryMetadata(tag).plugin_data.content


def test_a_unit_is_a_session_with_its_knobs(loaded: Loaded, runs: Path) -> None:
    unit = units_of(loaded[1], "trust_region")[1]
    write_run(runs, loaded[0], unit, {20: [1, 2], 40: [4, 2]}, steps=60)
    show(loaded, runs, unit, "running")
    assert metadata.SESSION_END_INFO_TAG not in read(runs, unit.id).Tags()["tensors"]
    for state, status in (("failed", "STATUS_FAILURE"), ("done", "STATUS_SUCCESS")):
        show(loaded, runs, unit, state)
        reader = read(runs, unit.id)
        started = metadata.parse_session_start_info_plugin_data(
            session(reader, metadata.SESSION_START_INFO_TAG)
        )
        ended = metadata.parse_session_end_info_plugin_data(
            session(reader, metadata.SESSION_END_INFO_TAG)
        )
        values: dict[str, Any] = {}
        for key, value in started.hparams.items():
            values[key] = getattr(value, value.WhichOneof("kind"))
        knobs = {"epsilon0": 0.05, "K": 12.0}
        assert values == {"method": "trust_region", "setup": "arithmetic", "seed": 0.0} | knobs
        assert status in str(ended)
        assert f"| state | {state} |" in text(reader, "summary")
    assert "| best_step | 40 |" in text(reader, "summary")
    top_k = loaded[0].setups["arithmetic"].training.top_k
    assert f"| training.top_k | {top_k} |" in text(reader, "configuration")


# --- results ---


def test_the_tables_are_texts_and_are_replaced(loaded: Loaded, runs: Path) -> None:
    board = open_tracker(Study(*loaded, runs))
    for value in (50.0, 62.5):
        rows = [["Veto", value], ["Vanilla", None]]
        results = Results(loaded[0], {"results": (["Method", "Avg"], rows)}, ["one", "another"])
        board.show_results(results)
        reader = read(runs, results.id)
        shown = text(reader, "results").splitlines()
        assert [line.strip("| ").split(" | ") for line in (shown[0], shown[2])] == [
            ["Method", "Avg"],
            ["Veto", str(value)],
        ]
        assert "Vanilla" in shown[3]
        assert "None" not in shown[3]
        assert text(reader, "notes") == "one\n\nanother"


# --- kills ---


def show_vanilla(runs: str) -> None:
    """The work of the process that is killed."""
    loaded = quickstart("runtime.tracker=tensorboard")
    show(loaded, Path(runs), units_of(loaded[1], "vanilla")[0])


@pytest.mark.parametrize("missing", [1, 5, 300])
def test_a_record_that_was_cut_off_is_completed(missing: int, loaded: Loaded, runs: Path) -> None:
    unit = units_of(loaded[1], "vanilla")[0]
    write_run(runs, loaded[0], unit, {}, steps=25, done=False)
    show(loaded, runs, unit)
    file = event_file(runs, unit)
    whole = file.read_bytes()
    os.truncate(file, len(whole) - missing)
    show(loaded, runs, unit)
    assert event_file(runs, unit).read_bytes() == whole


def test_another_process_writes_the_same_bytes(loaded: Loaded, runs: Path) -> None:
    unit = units_of(loaded[1], "vanilla")[0]
    write_run(runs, loaded[0], unit, {20: [1, 2]}, steps=25, done=False)
    show(loaded, runs, unit)
    before = event_file(runs, unit).read_bytes()
    program = f"from {__name__} import show_vanilla; show_vanilla({str(runs)!r})"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment(), check=True)
    assert event_file(runs, unit).read_bytes() == before


def test_a_kill_neither_loses_nor_doubles_a_row(loaded: Loaded, runs: Path) -> None:
    unit = units_of(loaded[1], "vanilla")[0]
    write_run(runs, loaded[0], unit, {}, steps=MANY, done=False)
    program = f"from {__name__} import show_vanilla; show_vanilla({str(runs)!r})"
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=environment()) as process:
        while not list(runs.glob(f".tensorboard/{unit.id}/*")):
            assert process.poll() is None
            time.sleep(0.002)
        process.kill()
    show(loaded, runs, unit)
    assert scalars(runs, unit, "train/loss") == losses(MANY)


# --- beside a sweep, and where it is not installed ---


def test_a_mirror_shows_all_units_and_the_tables(loaded: Loaded, runs: Path) -> None:
    units = [units_of(loaded[1], name)[0] for name in ("vanilla", "veto")]
    for unit in units:
        write_run(runs, loaded[0], unit, {20: [1, 2]}, steps=25, done=False)
    said: list[str] = []
    mirror = Mirror(Study(loaded[0], units, runs), "trb submit", said.append)
    mirror.announce()
    mirror.catch_up({"results": (["Method"], [["Veto"]])}, [])
    assert said == [f"TensorBoard: tensorboard --logdir {runs / '.tensorboard'}"] * 2
    folders = {folder.name for folder in (runs / ".tensorboard").iterdir()}
    assert folders == {*(unit.id for unit in units), "results-quickstart"}


def test_without_the_package_nothing_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracker.importlib.util, "find_spec", lambda name: None)
    runs = str(tmp_path / "runs")
    with pytest.raises(SystemExit) as ended:
        main(["submit", str(QUICKSTART), "runtime.tracker=tensorboard", "--runs", runs])
    assert ended.value.code == 2
    shown, line = capsys.readouterr()
    assert (shown, line.count("\n")) == ("", 1)
    assert "runtime.tracker: 'tensorboard'" in line
    assert "pip install tensorboard" in line
    assert not (tmp_path / "runs").exists()
