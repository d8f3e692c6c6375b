"""Pieces of work, attempts and device-hours, from rows of clocks that are written here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.experiment.evaluation_protocol import FRESH
from orchestrator.monitor.timeline import (
    RESCORE,
    attempts,
    device_of,
    hours_spent,
    pieces,
    seconds_spent,
)
from orchestrator.records.rundir import RunReader
from orchestrator.selection.study import Study
from tests.fake_runs import quickstart, units_of

NOON = 1_795_262_400.0  # 21 November 2026, 12:00 UTC
HERE = {"host": "node-1", "process": 7, "gpu": "3"}


def train(step: int, at: float, seconds: float, **where: Any) -> dict[str, Any]:
    return {
        "step": step,
        "phase": "train",
        "rollout": seconds - 1,
        "learn": 1.0,
        "at": NOON + at,
        **HERE,
        **where,
    }


def slice_of(at: float, seconds: float, draw: int = 0) -> dict[str, Any]:
    return {
        "step": 2,
        "phase": "evaluate",
        "draw": draw,
        "seconds": seconds,
        "at": NOON + at,
        "host": "node-2",
    }


def clocks(runs: Path, unit_id: str, starts: list[int], rows: list[dict[str, Any]]) -> RunReader:
    """A unit whose attempts started that many seconds after noon, and what was clocked of it."""
    folder = runs / unit_id
    folder.mkdir(parents=True)
    begun = [
        {"started": f"2026-11-21T12:{second // 60:02d}:{second % 60:02d}+00:00"}
        for second in starts
    ]
    (folder / "attempts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in begun))
    (folder / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunReader(runs, unit_id)


def shown(run: RunReader) -> list[tuple[str, float, float, bool]]:
    return [(piece.kind, piece.start - NOON, piece.end - NOON, piece.lost) for piece in pieces(run)]


def test_steps_without_a_pause_are_one_piece_and_a_pause_is_a_gap(tmp_path: Path) -> None:
    rows = [
        {"step": 0, "phase": "start", "role": "learner", "seconds": 4.0, "at": NOON + 5, **HERE}
    ]
    rows += [train(0, 10, 5), train(1, 16, 5), train(2, 60, 5)]
    run = clocks(tmp_path, "a", [0], rows)
    assert shown(run) == [("start", 1, 5, False), ("train", 5, 16, False), ("train", 55, 60, False)]
    assert {(piece.host, piece.process, piece.gpu) for piece in pieces(run)} == {("node-1", 7, "3")}


def test_another_place_is_another_piece(tmp_path: Path) -> None:
    run = clocks(tmp_path, "a", [0], [train(0, 10, 5), train(1, 15, 5, gpu="4")])
    assert [(piece.gpu, piece.end - NOON) for piece in pieces(run)] == [("3", 10), ("4", 15)]


def test_steps_that_were_taken_again_are_lost_with_their_attempt(tmp_path: Path) -> None:
    """Steps 0 and 1 committed, 2 and 3 taken again after a kill; the unit is not trained yet."""
    first = [train(step, 10 + 5 * step, 5) for step in range(4)]
    again = [train(step, 100 + 5 * step, 5) for step in (2, 3)]
    run = clocks(tmp_path, "a", [3, 100], [*first, *again])
    assert shown(run) == [
        ("train", 5, 15, False),
        ("train", 15, 25, True),
        ("train", 105, 115, False),
    ]
    found = attempts(run, pieces(run))
    assert [(each.start - NOON, each.end - NOON, each.complete) for each in found] == [
        (3, 25, False),
        (100, 115, False),
    ]
    assert all(each.where is not None and each.where.gpu == "3" for each in found)


def test_evaluators_prolong_no_attempt(tmp_path: Path) -> None:
    rows = [train(0, 10, 5), slice_of(500, 20), slice_of(600, 20, FRESH)]
    rows += [{"step": 2, "phase": "start", "role": "evaluator", "seconds": 2.0, "at": NOON + 480}]
    run = clocks(tmp_path, "a", [0], rows)
    assert [piece.kind for piece in pieces(run)] == ["train", "start", "evaluate", RESCORE]
    assert seconds_spent(run) == (10, 42)


@pytest.mark.parametrize(("gpus", "hours"), [(0, (100 * 2 + 36 * 2) / 3600), (1, 136 / 3600)])
def test_hours_are_of_gpus_or_where_there_is_none_of_cores(
    tmp_path: Path, gpus: int, hours: float
) -> None:
    experiment, units = quickstart(f"runtime.placement.gpus={gpus}", "runtime.placement.cpus=2")
    [vanilla] = units_of(units, "vanilla")
    clocks(tmp_path, vanilla.id, [0], [train(0, 100, 5), slice_of(500, 36)])
    study = Study(experiment, units, tmp_path)
    assert device_of(study) == ("GPU" if gpus else "core")
    assert hours_spent(study) == pytest.approx(hours)
