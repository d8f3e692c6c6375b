"""When units were worked at, from the clocks in their run directories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.records.clock import attempts, pieces
from orchestrator.records.rundir import RunReader

Span = tuple[float, float]  # seconds since 1970 (UTC): start and end


@dataclass(frozen=True)
class Timeline:
    """From the first start to the last sign of work, and the seconds in which some unit was worked
    at.
    """

    start: float
    end: float
    busy: float


def spans(run: RunReader) -> list[Span]:
    """When one unit was worked at: attempts from their start to the last clock that they left, and
    evaluators.
    """
    done = pieces(run)
    trained = [(attempt.start, attempt.end) for attempt in attempts(run, done)]
    return sorted([*trained, *((piece.start, piece.end) for piece in done if piece.evaluator)])


def timeline(runs: Path, unit_ids: Iterable[str]) -> Timeline | None:
    """That of several units together, side by side or not; None where nothing was clocked."""
    known = sorted(span for unit_id in unit_ids for span in spans(RunReader(runs, unit_id)))
    if not known:
        return None
    return Timeline(known[0][0], max(end for _, end in known), _covered(known))


def period_text(start: float, end: float) -> str:
    """`21 November 2026, 13:02 to 13:40 UTC`; both dates where they differ."""
    first, last = (datetime.fromtimestamp(seconds, UTC) for seconds in (start, end))
    dates = [f"{time.day} {time:%B %Y}, {time:%H:%M}" for time in (first, last)]
    return f"{dates[0]} to {f'{last:%H:%M}' if first.date() == last.date() else dates[1]} UTC"


def _covered(ordered: Sequence[Span]) -> float:
    """Length of the union of spans in ascending order of their starts."""
    covered, reached = 0.0, float("-inf")
    for start, end in ordered:
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered
