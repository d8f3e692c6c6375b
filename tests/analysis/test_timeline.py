"""When units were worked at: attempts, pauses, units side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.facts.provenance import WorkTime, work_time
from analysis.report.background import period_text
from orchestrator.records.rundir import RunReader
from tests.fake_clocks import NOON, step_row, write_clocks


def worked(runs: Path, unit: str, starts: list[int], marks: list[int]) -> RunReader:
    """A unit whose attempts started, and whose steps ended, that many seconds after noon."""
    return write_clocks(runs, unit, starts, [step_row(0, mark) for mark in marks])


def test_nothing_clocked_is_no_time(tmp_path: Path) -> None:
    assert work_time([RunReader(tmp_path, "none")]) is None


def test_units_side_by_side_count_once_and_pauses_not_at_all(tmp_path: Path) -> None:
    runs = [worked(tmp_path, "b", [30, 600], [90, 660]), worked(tmp_path, "a", [0], [60])]
    assert work_time(runs) == WorkTime(NOON, NOON + 660, 90 + 60)


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        (1.5, "21 November 2026, 12:00 to 13:30 UTC"),
        (30, "21 November 2026, 12:00 to 22 November 2026, 18:00 UTC"),
    ],
)
def test_a_period_in_words(hours: float, text: str) -> None:
    assert period_text(NOON, NOON + 3600 * hours) == text
