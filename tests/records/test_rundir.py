"""The run directory after any interruption: what was committed is there, byte for byte, and nothing
else is.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.records.files import Damaged
from orchestrator.records.rundir import LEARNER_STATE, RunReader
from orchestrator.records.writer import RecordWriter, RunWriter
from tests.sweeps import ROOT

UNIT = "unit-0"
LOGS = ("metrics.jsonl", "rollouts.jsonl")
STEPS, COMMIT_EVERY = 12, 3


def opened(runs: Path) -> closing[RunWriter]:
    return closing(RunWriter(runs, UNIT))


def row(step: int) -> dict[str, Any]:
    return {"step": step, "loss": 1 / (step + 1)}


def save(folder: Path) -> None:
    """A checkpoint: weights and the learner's state."""
    (folder / "model.safetensors").write_text("weights")
    (folder / LEARNER_STATE).write_text("state")


# --- logs ---


def test_uncommitted_rows_vanish_on_reopening(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.append("metrics.jsonl", [row(0), row(1)])
        run.append("rollouts.jsonl", [row(0)])
        run.commit(2)
        run.append("metrics.jsonl", [row(2)])
        run.append("rollouts.jsonl", [row(2)])
        assert run.metrics() == [row(0), row(1), row(2)]
    with opened(tmp_path) as run:
        assert run.next_step == 2
        assert run.metrics() == [row(0), row(1)]
        assert list(run.rollouts()) == [row(0)]


def test_a_commit_records_the_offsets(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.append("metrics.jsonl", [{"text": "größer ≥ 1"}])
        run.commit(1)
        run.append("metrics.jsonl", [row(1)])
        run.commit(2)
    state = json.loads((tmp_path / UNIT / "state.json").read_text())
    assert state["next_step"] == 2
    assert state["offsets"] == {name: (tmp_path / UNIT / name).stat().st_size for name in LOGS}


@pytest.mark.parametrize("tail", [b"{", b'{"step": 1', b'{"step": 1}', '{"text": "ü'.encode()[:-1]])
def test_a_torn_last_line_is_not_read(tail: bytes, tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.append("metrics.jsonl", [row(0)])
        run.commit(1)
        with (run.path / "metrics.jsonl").open("ab") as file:
            file.write(tail)
        assert RunReader(tmp_path, UNIT).metrics() == [row(0)]
    RunWriter(tmp_path, UNIT).close()
    assert (tmp_path / UNIT / "metrics.jsonl").read_text() == json.dumps(row(0)) + "\n"


def test_line_separators_in_texts_are_no_line_ends(tmp_path: Path) -> None:
    texts = [{"text": "a\u2028b\x85c\nd\r"}, {"text": "e"}]
    with opened(tmp_path) as run:
        run.append("rollouts.jsonl", texts)
        assert list(run.rollouts()) == texts


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.append(
            "metrics.jsonl",
            [{"a": math.nan, "b": [math.inf, 1.5], "c": {"d": -math.inf}, "e": "NaN"}],
        )
        assert run.metrics() == [{"a": None, "b": [None, 1.5], "c": {"d": None}, "e": "NaN"}]


def test_the_wall_clock_log_is_left_alone(tmp_path: Path) -> None:
    for attempt in (0, 1):
        with opened(tmp_path) as run:
            run.append_timing({"phase": "train", "step": attempt})
    assert [row["step"] for row in RunReader(tmp_path, UNIT).timing()] == [0, 1]


# --- a log that begins later than the others ---

LATER = "held_out.jsonl"


def test_a_later_log_is_absent_until_its_first_row_and_committed_from_then_on(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as run:
        run.append("metrics.jsonl", [row(0)])
        run.commit(1)
        assert not (run.path / LATER).exists()
        run.append(LATER, [{"step": 1}])
        assert RunReader(tmp_path, UNIT).committed(LATER) == []
    with opened(tmp_path) as run:  # the row was not committed
        assert (run.path / LATER).read_bytes() == b""
        run.append(LATER, [{"step": 1}])
        run.commit(2)
    RunWriter(tmp_path, UNIT).close()  # nor does a later attempt without a row forget the log
    with opened(tmp_path) as run:
        run.commit(3)
    assert RunReader(tmp_path, UNIT).committed(LATER) == [{"step": 1}]


def test_a_later_log_that_is_lost_is_damage(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.append(LATER, [{"step": 1}])
        run.commit(1)
    (tmp_path / UNIT / LATER).unlink()
    with pytest.raises(Damaged, match=f"{LATER}: has 0 of the"):
        RunReader(tmp_path, UNIT).committed(LATER)
    with pytest.raises(Damaged, match=f"{LATER}: has 0 of the"):
        RunWriter(tmp_path, UNIT)


# --- checkpoints ---


def files(run: RunReader) -> dict[int, list[str]]:
    return {
        step: sorted(file.name for file in folder.iterdir())
        for step, folder in run.checkpoints().items()
    }


def test_a_half_made_checkpoint_is_discarded(tmp_path: Path) -> None:
    def save_half(folder: Path) -> None:
        save(folder)
        raise KeyboardInterrupt

    with opened(tmp_path) as run:
        with suppress(KeyboardInterrupt):
            run.new_checkpoint(2, save_half)
        assert run.checkpoints() == {}
        assert list((run.path / "checkpoints").iterdir()) != []
    with opened(tmp_path) as run:
        assert list((run.path / "checkpoints").iterdir()) == []
        run.new_checkpoint(2, save)
        assert files(run) == {2: [LEARNER_STATE, "model.safetensors"]}


def test_a_checkpoint_that_was_never_committed_is_discarded(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.new_checkpoint(2, save)
        run.commit(2)
        run.new_checkpoint(4, save)
    with opened(tmp_path) as run:
        assert files(run) == {2: [LEARNER_STATE, "model.safetensors"]}


def test_a_checkpoint_made_again_replaces_the_first(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.new_checkpoint(2, save)
        run.new_checkpoint(2, lambda folder: (folder / "other").touch())
        assert files(run) == {2: ["other"]}


def test_the_learners_state_lies_beside_the_last_checkpoint_only(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        for step in (2, 4, 6):
            run.new_checkpoint(step, save)
            run.commit(step)
        weights, both = ["model.safetensors"], [LEARNER_STATE, "model.safetensors"]
        assert files(run) == {2: weights, 4: weights, 6: both}
    with closing(RecordWriter(tmp_path, UNIT)) as dropping:
        dropping.drop_checkpoints({4, 6})
        assert files(dropping) == {4: weights, 6: both}
    with opened(tmp_path) as run:
        run.finish()
        assert files(run) == {4: weights, 6: weights}


def test_the_state_to_go_on_from_is_there_until_the_next_one_is_committed(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.new_checkpoint(2, save)
        run.commit(2)
        run.new_checkpoint(4, save)
        assert files(run)[2] == [LEARNER_STATE, "model.safetensors"]


def saved(run: RunReader) -> list[str]:
    return sorted(path.name for path in (run.path / "saved").glob("*"))


def test_one_save_lies_beside_the_checkpoints_and_the_next_commit_removes_it(
    tmp_path: Path,
) -> None:
    """Whatever a kill leaves of it: the folder of a save that was, or was not, committed."""
    with opened(tmp_path) as run:
        run.new_checkpoint(2, save)
        run.commit(2)
        run.new_save(3, save)
        run.commit(3)
        assert (saved(run), run.verified_state()) == (["step_000003"], run.saved_path(3))
        assert (run.committed_checkpoints(), files(run)) == ([2], {2: ["model.safetensors"]})
        run.new_save(4, save)  # and killed before its commit
        assert saved(run) == ["step_000003", "step_000004"]
    with closing(RecordWriter(tmp_path, UNIT)) as dropping:
        dropping.drop_checkpoints(set())
    with opened(tmp_path) as run:
        assert (saved(run), run.verified_state()) == (["step_000003"], run.saved_path(3))
        run.new_save(4, save)
        run.commit(4)
        (run.path / "saved" / "step_000003").mkdir()  # and killed before it was removed
    with opened(tmp_path) as run:
        assert (saved(run), run.next_step) == (["step_000004"], 4)
        run.new_checkpoint(5, save)
        run.commit(5)
        assert (files(run), run.verified_state()) == (
            {5: [LEARNER_STATE, "model.safetensors"]},
            run.checkpoint_path(5),
        )
    assert not (run.path / "saved").exists()
    assert "saved" not in (run.path / "state.json").read_text()


# --- descriptions, ends ---


def test_a_unit_is_described_once(tmp_path: Path) -> None:
    for attempt in (0, 1):
        with opened(tmp_path) as run:
            assert run.started == bool(attempt)
            run.describe({"attempt": attempt}, lambda: {"commit": "abc"})
    reader = RunReader(tmp_path, UNIT)
    assert (reader.config(), reader.provenance()) == (
        {"attempt": 0},
        {"commit": "abc", "models": {}},
    )


def test_each_attempt_leaves_a_row_that_no_torn_line_spoils(tmp_path: Path) -> None:
    for commit in ("abc", "def"):
        with opened(tmp_path) as run:
            run.describe({}, lambda: {"commit": commit})  # noqa: B023
            run.append_timing({"phase": "train", "step": 0})
        with (run.path / "attempts.jsonl").open("a") as file:
            file.write('{"started": ')  # a kill
    reader = RunReader(tmp_path, UNIT)
    assert [row["commit"] for row in reader.attempts()] == ["abc", "def"]
    started = [datetime.fromisoformat(row["started"]).timestamp() for row in reader.attempts()]
    assert started[0] <= started[1] <= reader.timing()[-1]["at"] + 1


def test_each_attempt_names_its_engines_and_dtypes(tmp_path: Path) -> None:
    """A unit that an earlier version began with other logits goes on: its rows tell which."""
    for dtype in ("bfloat16", "float32"):
        engine = {"sampler": "torch", "dtype": "bfloat16", "head_dtype": dtype}
        with opened(tmp_path) as run:
            run.describe({"setup": {"engine": engine}}, lambda: {"commit": "abc"})
    reader = RunReader(tmp_path, UNIT)
    assert [row["engine"]["head_dtype"] for row in reader.attempts()] == ["bfloat16", "float32"]
    assert reader.provenance()["engine"]["head_dtype"] == "bfloat16"


def test_done_is_said_last_and_stays(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.append("metrics.jsonl", [row(0)])
        run.commit(1)
        assert not run.trained
        run.finish()
    with opened(tmp_path) as run:
        assert run.trained
        assert (run.next_step, run.metrics()) == (1, [row(0)])


def test_the_next_attempt_forgets_why_the_last_one_failed(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.fail("no memory", "")
    assert RunReader(tmp_path, UNIT).error == "no memory"
    RunWriter(tmp_path, UNIT).close()
    assert RunReader(tmp_path, UNIT).error is None


def test_a_unit_that_was_never_begun(tmp_path: Path) -> None:
    reader = RunReader(tmp_path, UNIT)
    assert (reader.next_step, reader.trained, reader.started, reader.running, reader.error) == (
        0,
        *[False] * 3,
        None,
    )
    assert (reader.metrics(), list(reader.rollouts()), reader.timing(), reader.checkpoints()) == (
        [],
        [],
        [],
        {},
    )
    assert list(tmp_path.iterdir()) == []


# --- a writer in another process ---


def work(runs: str, until: int = STEPS, stop_in: int | None = None) -> None:
    """Steps from wherever the unit stands; within step `stop_in` it waits in the middle of
    appending.
    """
    with opened(Path(runs)) as run:
        for step in range(run.next_step, until):
            run.append("metrics.jsonl", [row(step)])
            run.append("rollouts.jsonl", rollouts(step, waits=step == stop_in))
            if (step + 1) % COMMIT_EVERY == 0:
                run.new_checkpoint(step + 1, save)
                run.commit(step + 1)
        run.finish()


def rollouts(step: int, waits: bool) -> Iterator[dict[str, Any]]:
    """Rows larger than a write buffer, so that some of them reach the file before the step is over."""
    for sample in range(8):
        if waits and sample == 5:
            print("midway", flush=True)
            time.sleep(300)
        yield {"step": step, "sample": sample, "text": f"{step}-{sample}→" * 700}


def worker(runs: Path, stop_in: int | None = None) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-c",
        f"from tests.records.test_rundir import work; work({str(runs)!r}, stop_in={stop_in})",
    ]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def kill_midway(runs: Path, stop_in: int) -> None:
    with worker(runs, stop_in) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "midway\n"
        process.kill()
    with (runs / UNIT / "rollouts.jsonl").open("ab") as file:
        file.write('{"step": 0, "text": "→'.encode()[:-1])  # the row being written, torn


def contents(runs: Path) -> dict[str, bytes]:
    unit = runs / UNIT
    return {
        str(file.relative_to(unit)): file.read_bytes()
        for file in sorted(unit.rglob("*"))
        if file.is_file()
    }


def test_kills_in_the_middle_of_appending_leave_no_trace(tmp_path: Path) -> None:
    work(str(tmp_path / "undisturbed"))
    runs = tmp_path / "killed"
    for stop_in in (1, 3, 5, 11):
        kill_midway(runs, stop_in)
        reader = RunReader(runs, UNIT)
        assert reader.next_step == stop_in // COMMIT_EVERY * COMMIT_EVERY
        assert [r["step"] for r in reader.metrics()] == list(range(stop_in + 1))
        assert [r["step"] for r in reader.committed_metrics()] == list(range(reader.next_step))
        assert [(r["step"], r["sample"]) for r in reader.rollouts()][-1] > (stop_in, 0)
    work(str(runs))
    assert contents(runs) == contents(tmp_path / "undisturbed")


def test_reading_while_another_process_writes(tmp_path: Path) -> None:
    reader, seen = RunReader(tmp_path, UNIT), 0
    command = f"from tests.records.test_rundir import work; work({str(tmp_path)!r}, until=90)"
    with subprocess.Popen([sys.executable, "-c", command], cwd=ROOT) as process:
        while process.poll() is None:
            metrics, committed = reader.metrics(), reader.committed_metrics()
            assert metrics == [row(step) for step in range(len(metrics))]
            assert committed == [row(step) for step in range(len(committed))]
            assert len(committed) % COMMIT_EVERY == 0
            assert all(len(r["text"]) >= 2100 for r in reader.rollouts())
            seen += 0 < len(metrics) < 90
    assert process.returncode == 0
    assert seen > 0
    assert len(reader.metrics()) == 90


def test_a_folder_copied_without_its_locks_is_readable(tmp_path: Path) -> None:
    work(str(tmp_path / "runs"))
    os.rename(tmp_path / "runs" / UNIT, tmp_path / UNIT)
    assert len(RunReader(tmp_path, UNIT).metrics()) == STEPS


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_of_a_checkpoint_have_the_mode_that_the_user_gives_files(
    mask: int, mode: int, tmp_path: Path
) -> None:
    def save(folder: Path) -> None:
        (folder / "learner").mkdir()
        for name in ("config.json", "model.safetensors", "learner/rank_0.safetensors"):
            (folder / name).touch()
            (folder / name).chmod(0o600 if "safetensors" in name else mode)

    before = os.umask(mask)
    try:
        with closing(RunWriter(tmp_path, "unit")) as run:
            run.new_checkpoint(2, save)
            files = [path for path in run.checkpoint_path(2).rglob("*") if path.is_file()]
    finally:
        os.umask(before)
    assert sorted(path.name for path in files) == [
        "config.json",
        "model.safetensors",
        "rank_0.safetensors",
    ]
    assert {path.stat().st_mode & 0o777 for path in files} == {mode}
