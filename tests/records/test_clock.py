"""Seconds, pieces of work and attempts, from rows of clocks that are written here."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.experiment.evaluation_protocol import FRESH
from orchestrator.records.clock import (
    BLENDED,
    PLAIN,
    RESCORE,
    attempts,
    kept_steps,
    mean_seconds,
    phase_seconds,
    pieces,
    seconds_spent,
)
from orchestrator.records.columns import EVALUATE
from orchestrator.records.rundir import RunReader
from tests.fake_clocks import NOON, slice_row, start_row, step_row, write_clocks

HERE = {"host": "node-1", "process": 7, "gpu": "3"}


def shown(run: RunReader) -> list[tuple[str, float, float, bool]]:
    return [(piece.kind, piece.start - NOON, piece.end - NOON, piece.lost) for piece in pieces(run)]


def test_steps_without_a_pause_are_one_piece_and_a_pause_is_a_gap(tmp_path: Path) -> None:
    steps = [step_row(0, 10, 5, **HERE), step_row(1, 16, 5, **HERE), step_row(2, 60, 5, **HERE)]
    run = write_clocks(tmp_path, "a", [0], [start_row("learner", 5, 4.0, **HERE), *steps])
    assert shown(run) == [("start", 1, 5, False), ("train", 5, 16, False), ("train", 55, 60, False)]
    assert {(piece.host, piece.process, piece.gpu) for piece in pieces(run)} == {("node-1", 7, "3")}


def test_another_place_is_another_piece(tmp_path: Path) -> None:
    run = write_clocks(tmp_path, "a", [0], [step_row(0, 10, 5, gpu="3"), step_row(1, 15, 5)])
    assert [(piece.gpu, piece.end - NOON) for piece in pieces(run)] == [("3", 10), (None, 15)]


def test_steps_that_were_taken_again_are_lost_with_their_attempt(tmp_path: Path) -> None:
    """Steps 0 and 1 committed, 2 and 3 taken again after a kill; the unit is not trained yet."""
    first = [step_row(step, 10 + 5 * step, 5, **HERE) for step in range(4)]
    again = [step_row(step, 100 + 6 * step, 6, **HERE) for step in (2, 3)]
    run = write_clocks(tmp_path, "a", [3, 100], [*first, *again])
    assert shown(run) == [
        ("train", 5, 15, False),
        ("train", 15, 25, True),
        ("train", 106, 118, False),
    ]
    found = attempts(run, pieces(run))
    assert [(each.start - NOON, each.end - NOON, each.complete) for each in found] == [
        (3, 25, False),
        (100, 118, False),
    ]
    assert all(each.where is not None and each.where.gpu == "3" for each in found)
    assert [row.seconds for row in kept_steps(run).values()] == [5, 5, 6, 6]
    clocked = phase_seconds(run)
    assert clocked.seconds == {"rollout": 4 * 4 + 2 * 5, "learn": 6.0}
    assert (clocked.steps, clocked.repeated) == (6, 2)


def test_evaluators_prolong_no_attempt(tmp_path: Path) -> None:
    rows = [step_row(0, 10, 5), slice_row(500, 20), slice_row(600, 20, FRESH)]
    run = write_clocks(tmp_path, "a", [0], [*rows, start_row("evaluator", 480, 2.0)])
    assert [piece.kind for piece in pieces(run)] == ["train", "start", "evaluate", RESCORE]
    assert seconds_spent(run) == (10, 42)
    assert phase_seconds(run).seconds == {"rollout": 4, "learn": 1, "evaluate": 40, "start": 2}


def test_means_are_by_kind_of_work_without_the_first_row_of_each(tmp_path: Path) -> None:
    steps = [step_row(step, 10, seconds) for step, seconds in enumerate([90.0, 3, 5, 80, 7])]
    slices = [
        slice_row(10, 8.0) | {"benchmark": "b", "responses": responses} for responses in (1, 4)
    ]
    means = mean_seconds(write_clocks(tmp_path, "a", [0], [*steps, *slices]), blended=3)
    assert means[BLENDED].parts == {"rollout": 3.0, "learn": 1.0}
    assert (means[BLENDED].rows, means[BLENDED].whole) == (2, 4.0)
    assert means[PLAIN].whole == 7.0
    assert means["b"].parts == {EVALUATE: 2.0}


def test_the_latest_rows_say_how_fast_a_unit_is_now(tmp_path: Path) -> None:
    slow_then_fast = [step_row(step, 10, 9.0 if step < 50 else 4.0) for step in range(70)]
    [plain] = mean_seconds(write_clocks(tmp_path, "a", [0], slow_then_fast), blended=0).values()
    assert plain.recent == 4.0
    assert plain.whole == pytest.approx((49 * 9 + 20 * 4) / 69)
