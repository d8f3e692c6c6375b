"""The training steps of a unit: how many of them decode with the teacher."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import Any

from orchestrator.experiment.methods import needs_teacher
from orchestrator.experiment.units import Unit


def teacher_online_steps(unit: Unit) -> int:
    """Steps whose behavior policy asks the teacher at every token; they come first."""
    if not unit.is_trial:
        return 0
    return _online(unit.method, tuple(unit.knobs.items()), unit.steps)


def steps_left(unit: Unit, first: int = 0) -> tuple[int, int]:
    """Steps from `first` on that decode with the teacher, and those that do not."""
    online = max(0, teacher_online_steps(unit) - first)
    return online, max(0, unit.steps - first) - online


@lru_cache(maxsize=2**16)
def _online(method: str | None, knobs: tuple[tuple[str, Any], ...], steps: int) -> int:
    # All of them come before all others, so their number is where the answer changes: 9 questions
    # instead of 400.
    return bisect_left(
        range(steps), True, key=lambda step: not needs_teacher(method, dict(knobs), step)
    )
