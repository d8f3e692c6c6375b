"""TensorBoard's own reader finds every committed row once, whatever was killed or changed before."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from orchestrator.experiment.units import Unit
from orchestrator.records.writer import RunWriter
from orchestrator.tracking import tracker
from orchestrator.tracking.projection import Results
from orchestrator.tracking.tensorboard import open_tracker
from orchestrator.tracking.tracker import Mirror
from tests.fake_runs import QUICKSTART, metrics, quickstart
from tests.sweeps import ROOT, environment, trb_refuses
from tests.tracking.sweep import Sweep

MANY = 3000  # rows: enough that writing them can be killed on the way


def show(sweep: Sweep, unit: Unit, state: str = "running") -> None:
    """Show a unit by a tracker that knows of nothing that was shown before."""
    open_tracker(sweep.study).show(sweep.projection(unit, state, goes_on=True))


def read(sweep: Sweep, name: str) -> EventAccumulator:
    """The folder of a unit or of the results as TensorBoard reads it, without leaving values out."""
    reader = EventAccumulator(str(sweep.runs / ".tensorboard" / name), size_guidance={"scalars": 0})
    reader.Reload()
    return reader


def scalars(sweep: Sweep, unit: Unit, tag: str) -> list[tuple[int, float]]:
    """Step and value of each scalar, in the order of the file."""
    return [(event.step, event.value) for event in read(sweep, unit.id).Scalars(tag)]


def losses(steps: int) -> list[tuple[int, Any]]:
    return [(step, pytest.approx(metrics(step)["loss"])) for step in range(steps)]


def text(reader: EventAccumulator, tag: str) -> str:
    (event,) = reader.Tensors(tag)
    return event.tensor_proto.string_val[0].decode()


def event_file(sweep: Sweep, unit: Unit) -> Path:
    """The file that holds the events of a unit."""
    (file,) = (
        file for file in (sweep.runs / ".tensorboard" / unit.id).iterdir() if file.stat().st_size
    )
    return file


# --- rows ---


def test_scalars_stand_at_their_steps_and_seeds_apart(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", *quickstart("seeds=[0,1]"))
    for seed, steps, mean in ((0, 25, 0.375), (1, 40, 0.875)):
        unit = sweep.unit(position=seed)
        sweep.write(unit, steps, {20: [1, 2] if seed == 0 else [3, 4]})
        show(sweep, unit)
        assert scalars(sweep, unit, "train/loss") == losses(steps)
        assert scalars(sweep, unit, "eval/mean") == [(20, mean)]


def test_a_run_that_goes_on_has_each_row_once_and_is_left_alone_without_new_ones(
    sweep: Sweep,
) -> None:
    unit = sweep.unit()
    for steps in (10, 25):
        sweep.write(unit, steps)
        show(sweep, unit)
        assert scalars(sweep, unit, "train/loss") == losses(steps)
    before = event_file(sweep, unit)
    show(sweep, unit)
    assert event_file(sweep, unit) == before


def test_rows_that_are_not_committed_are_shown_until_a_kill_takes_them_back(sweep: Sweep) -> None:
    unit = sweep.unit()
    sweep.write(unit, 10)
    with closing(RunWriter(sweep.runs, unit.id)) as run:
        run.append("metrics.jsonl", [metrics(10)])
        show(sweep, unit)
        assert scalars(sweep, unit, "train/loss") == losses(11)
        show(sweep, unit, "interrupted")
        assert scalars(sweep, unit, "train/loss") == losses(10)
    with closing(RunWriter(sweep.runs, unit.id)) as run:
        run.append("metrics.jsonl", [metrics(10) | {"loss": 0.5}, metrics(11)])
        show(sweep, unit)
    assert scalars(sweep, unit, "train/loss") == [*losses(10), (10, 0.5), *losses(12)[11:]]


def test_a_row_has_the_time_at_which_its_step_ended(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = sweep.unit()
    sweep.write(unit, 3)
    with closing(RunWriter(sweep.runs, unit.id)) as run:
        for step in range(3):
            monkeypatch.setattr(time, "time", lambda step=step: 1000.0 + step)
            run.append_timing({"step": step, "phase": "train", "rollout": 1.0})
    show(sweep, unit)
    shown = read(sweep, unit.id).Scalars("train/loss")
    assert [event.wall_time for event in shown] == [1000.0, 1001.0, 1002.0]


def test_a_score_of_more_samples_takes_the_place_of_the_first(sweep: Sweep) -> None:
    unit = sweep.unit()
    for correct in ([1, 1], [4, 4]):
        sweep.write(unit, 40, {20: correct})
        show(sweep, unit)
        assert scalars(sweep, unit, "eval/mean") == [(20, correct[0] / 4)]
        assert scalars(sweep, unit, "train/loss") == losses(40)


def test_a_reader_that_saw_a_file_before_its_replacement_has_no_row_twice(sweep: Sweep) -> None:
    unit = sweep.unit()
    sweep.write(unit, 25, {20: [1, 1]})
    show(sweep, unit)
    reader = read(sweep, unit.id)
    sweep.write(unit, 30, {20: [4, 4]})
    show(sweep, unit)
    reader.Reload()
    assert [event.step for event in reader.Scalars("train/loss")] == list(range(30))
    assert [event.value for event in reader.Scalars("eval/mean")] == [1.0]


# --- a unit as a session ---


def session(reader: EventAccumulator, tag: str) -> bytes:
    return reader.SummaryMetadata(tag).plugin_data.content


def test_a_unit_is_a_session_with_its_knobs(sweep: Sweep) -> None:
    unit = sweep.unit("trust_region", 1)
    sweep.write(unit, 60, {20: [1, 2], 40: [4, 2]}, done=True)
    show(sweep, unit, "running")
    assert metadata.SESSION_END_INFO_TAG not in read(sweep, unit.id).Tags()["tensors"]
    for state, status in (("failed", "STATUS_FAILURE"), ("done", "STATUS_SUCCESS")):
        show(sweep, unit, state)
        reader = read(sweep, unit.id)
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
    top_k = sweep.experiment.setups["arithmetic"].training.top_k
    assert f"| training.top_k | {top_k} |" in text(reader, "configuration")


# --- results ---


def test_the_tables_are_texts_and_are_replaced(sweep: Sweep) -> None:
    board = open_tracker(sweep.study)
    for value in (50.0, 62.5):
        rows = [["Veto", value], ["Vanilla", None]]
        results = Results(
            sweep.experiment, {"results": (["Method", "Avg"], rows)}, ["one", "another"]
        )
        board.show_results(results)
        reader = read(sweep, results.id)
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
    sweep = Sweep(Path(runs))
    show(sweep, sweep.unit())


def test_another_process_writes_the_same_bytes(sweep: Sweep) -> None:
    unit = sweep.unit()
    sweep.write(unit, 25, {20: [1, 2]})
    show(sweep, unit)
    before = event_file(sweep, unit).read_bytes()
    program = f"from {__name__} import show_vanilla; show_vanilla({str(sweep.runs)!r})"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment(), check=True)
    assert event_file(sweep, unit).read_bytes() == before


def test_a_kill_neither_loses_nor_doubles_a_row(sweep: Sweep) -> None:
    unit = sweep.unit()
    sweep.write(unit, MANY)
    program = f"from {__name__} import show_vanilla; show_vanilla({str(sweep.runs)!r})"
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=environment()) as process:
        while not list(sweep.runs.glob(f".tensorboard/{unit.id}/*")):
            assert process.poll() is None
            time.sleep(0.002)
        process.kill()
    show(sweep, unit)
    assert scalars(sweep, unit, "train/loss") == losses(MANY)


# --- beside a sweep, and where it is not installed ---


def test_a_mirror_shows_all_units_and_the_tables(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", *quickstart("runtime.tracker=tensorboard"))
    shown = [sweep.unit(), sweep.unit("veto")]
    for unit in shown:
        sweep.write(unit, 25, {20: [1, 2]})
    said: list[str] = []
    mirror = Mirror(sweep.study, "trb submit", said.append)
    mirror.announce()
    mirror.catch_up({"results": (["Method"], [["Veto"]])}, [])
    assert said == [f"TensorBoard: tensorboard --logdir {sweep.runs / '.tensorboard'}"] * 2
    folders = {folder.name for folder in (sweep.runs / ".tensorboard").iterdir()}
    assert folders == {*(unit.id for unit in shown), sweep.results_id}


def test_without_the_package_nothing_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracker.importlib.util, "find_spec", lambda name: None)
    runs = str(tmp_path / "runs")
    asked = ["submit", QUICKSTART, "runtime.tracker=tensorboard", "--runs", runs]
    line = trb_refuses(capsys, *asked)
    assert "runtime.tracker: 'tensorboard'" in line
    assert "pip install tensorboard" in line
    assert not (tmp_path / "runs").exists()
