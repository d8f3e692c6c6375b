"""The time of the work on units, from the clocks in their run directories."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from orchestrator.records.clock import Span, worked
from orchestrator.records.rundir import RunReader


@dataclass(frozen=True)
class Timeline:
    """From the first start to the last clock; some unit was worked at for `busy` seconds of it."""

    start: float
    end: float
    busy: float


def spans(run: RunReader) -> list[Span]:
    """The time of work on one unit, by attempts up to their last clock and by evaluators."""
    attempts, evaluators = worked(run)
    return sorted(attempts + evaluators)


def timeline(runs: Iterable[RunReader]) -> Timeline | None:
    """The time of work on several units; None where nothing was clocked."""
    found: list[Span] = []
    for run in runs:
        found += spans(run)
    if not found:
        return None
    first, reached, busy = min(found)[0], float("-inf"), 0.0
    for start, end in sorted(found):
        # Units that ran side by side count once.
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return Timeline(first, reached, busy)


def period_text(start: float, end: float) -> str:
    """`21 November 2026, 13:02 to 13:40 UTC`; both dates where they differ."""
    first, last = datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC)
    until = f"{last:%H:%M}" if first.date() == last.date() else _moment_text(last)
    return f"{_moment_text(first)} to {until} UTC"


def _moment_text(time: datetime) -> str:
    return f"{time.day} {time:%B %Y}, {time:%H:%M}"
