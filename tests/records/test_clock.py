"""Seconds and attempts, from rows of clocks that are written here."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.experiment.evaluation_protocol import FRESH
from orchestrator.records.clock import (
    BLENDED,
    PLAIN,
    kept_steps,
    mean_seconds,
    phase_seconds,
    seconds_spent,
    worked,
)
from orchestrator.records.log import EVALUATE
from tests.fake_clocks import NOON, slice_row, start_row, step_row, write_clocks

HERE = {"host": "node-1", "process": 7, "gpu": "3"}


def test_steps_that_were_taken_again_count_in_both_attempts(tmp_path: Path) -> None:
    """Steps 0 and 1 committed, 2 and 3 taken again after a kill; the unit is not trained yet."""
    first = [step_row(step, 10 + 5 * step, 5, **HERE) for step in range(4)]
    again = [step_row(step, 100 + 6 * step, 6, **HERE) for step in (2, 3)]
    run = write_clocks(tmp_path, "a", [3, 100], [*first, *again])
    assert worked(run).attempts == [(NOON + 3, NOON + 25), (NOON + 100, NOON + 118)]
    assert [row.seconds for row in kept_steps(run).values()] == [5, 5, 6, 6]
    clocked = phase_seconds(run)
    assert clocked.seconds == {"rollout": 4 * 4 + 2 * 5, "learn": 6.0}
    assert (clocked.steps, clocked.repeated) == (6, 2)


def test_evaluators_prolong_no_attempt(tmp_path: Path) -> None:
    rows = [step_row(0, 10, 5), slice_row(500, 20), slice_row(600, 20, FRESH)]
    run = write_clocks(tmp_path, "a", [0], [*rows, start_row("evaluator", 480, 2.0)])
    assert len(worked(run).evaluators) == 3
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
