"""The notes of a unit: lines with clock times, and what it does now."""

from __future__ import annotations

import json
import logging
import re
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.records.log import PHASE, TRAINING, LogHandler, Phase, RunLog, read_phase
from orchestrator.records.rundir import RunReader
from orchestrator.records.writer import RunWriter


def test_lines_carry_their_clock_time_and_are_kept_by_the_next_writer(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with closing(RunWriter(tmp_path, "unit")) as run:
            run.log.line(text)
    lines = (RunReader(tmp_path, "unit").log_text() or "").splitlines()
    assert [line.split()[-1] for line in lines] == ["first", "second"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+", line) for line in lines)


def test_what_a_unit_does_can_be_read_while_it_does_it(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.begin("sweep", 3)
    assert read_phase(tmp_path) == Phase(attempt=1, attempts=3, sweep="sweep")
    log.enter(TRAINING)
    assert read_phase(tmp_path) == Phase(TRAINING, 1, 3, "sweep")


def test_attempts_are_counted_within_one_sweep(tmp_path: Path) -> None:
    assert [RunLog(tmp_path).begin("one", 3) for _ in range(3)] == [1, 2, 3]
    assert RunLog(tmp_path).begin("another", 3) == 1


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", "[" * 10**5, json.dumps({"name": 3}), json.dumps({"x": 1})]
)
def test_a_damaged_note_is_no_note(tmp_path: Path, text: str) -> None:
    (tmp_path / PHASE).write_text(text)
    assert read_phase(tmp_path) is None
    assert RunLog(tmp_path).begin("sweep", 3) == 1


def test_a_note_of_other_types_is_no_note(tmp_path: Path) -> None:
    RunLog(tmp_path).begin("sweep", 3)
    changed = json.loads((tmp_path / PHASE).read_text()) | {"attempt": "two"}
    (tmp_path / PHASE).write_text(json.dumps(changed))
    assert read_phase(tmp_path) is None


def test_warnings_of_libraries_reach_the_log(tmp_path: Path) -> None:
    handler = LogHandler(RunLog(tmp_path))
    logger = logging.getLogger("some.library")
    logger.addHandler(handler)
    try:
        logger.warning("low on %s", "memory")
        logger.info("nothing to see")
    finally:
        logger.removeHandler(handler)
    text = RunLog(tmp_path).path.read_text()
    assert text.rstrip().endswith("warning: some.library: low on memory")
    assert len(text.splitlines()) == 1


def test_a_note_that_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "nowhere")
    log.line("lost")
    assert log.begin("sweep", 3) == 1
    log.enter(TRAINING)
    assert not (tmp_path / "nowhere").exists()
