"""Clocks of made-up units: rows of `attempts.jsonl` and `timing.jsonl`, in seconds after NOON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.records.rundir import ATTEMPTS, TIMING, RunReader

NOON = 1_795_262_400.0  # 21 November 2026, 12:00 UTC


def step_row(step: int, at: float, seconds: float = 10.0, **place: Any) -> dict[str, Any]:
    """A training step, of which all but the learning is its rollout."""
    parts = {"rollout": seconds - 1, "learn": 1.0}
    return {"step": step, "phase": "train", **parts, "at": at, **place}


def slice_row(
    at: float, seconds: float = 10.0, repetition: int = 0, **place: Any
) -> dict[str, Any]:
    """A slice of an evaluation of the checkpoint after step 2."""
    return {
        "step": 2,
        "phase": "evaluate",
        "draw": repetition,
        "seconds": seconds,
        "at": at,
        **place,
    }


def start_row(role: str, at: float, seconds: float, **place: Any) -> dict[str, Any]:
    return {"step": 0, "phase": "start", "role": role, "seconds": seconds, "at": at, **place}


def write_clocks(
    runs: Path, unit_id: str, starts: Sequence[float], rows: Sequence[dict[str, Any]]
) -> RunReader:
    """A unit whose attempts began at `starts`, and `rows` of what was clocked of it."""
    folder = runs / unit_id
    folder.mkdir(parents=True)
    with (folder / ATTEMPTS).open("w", encoding="utf-8") as file:
        for second in starts:
            started = datetime.fromtimestamp(NOON + second, UTC).isoformat()
            file.write(json.dumps({"started": started}) + "\n")
    with (folder / TIMING).open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row | {"at": NOON + row["at"]}) + "\n")
    return RunReader(runs, unit_id)
