"""When and where a unit was worked at, and how long that took: the one reader of `timing.jsonl` and
of the starts in `attempts.jsonl`.

All times are seconds: durations, or since 1970 (UTC). Recovery does not reproduce clocks, so a log
may hold a training step several times: once for each attempt that took it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from statistics import fmean
from typing import Any

from orchestrator.records.columns import EVALUATE, EVALUATOR, STEP_PARTS, TRAIN
from orchestrator.records.rundir import ATTEMPTS, TIMING, RunReader

RESCORE = "rescore"  # the kind of a piece: fresh samples of a selected checkpoint
BLENDED, PLAIN = "blended step", "plain step"  # with the teacher while decoding, and without it
RECENT = 20  # rows that say how fast a unit is now
# Two rows are one piece unless more than this lies between them, and more than the later one took.
LEAST_PAUSE_S = 1.0


@dataclass(frozen=True)
class ClockRow:
    """One row of the log: work of a `phase` that took `seconds` and ended `at` some time.

    `parts` are the seconds of a training step by STEP_PARTS, empty for other phases. An evaluation
    sampled so many `responses` to a `benchmark`; they are `fresh` where they take no part in
    selection. `place` is the host, the process and the GPU (of CUDA_VISIBLE_DEVICES). Fields that
    older rows lack are None.
    """

    phase: str
    step: int
    seconds: float
    parts: Mapping[str, float]
    at: float | None
    place: tuple[str | None, int | None, str | None]
    evaluator: bool  # done by an evaluator and not by an attempt at the unit
    benchmark: str | None
    responses: int
    fresh: bool


@dataclass(frozen=True)
class Piece:
    """Work of one kind at one unit without a pause, from `start` to `end`.

    `kind` is START, TRAIN, EVALUATE or RESCORE. Steps that a later attempt took again are `lost`.
    Host, process and GPU are those of `ClockRow.place`.
    """

    kind: str
    start: float
    end: float
    host: str | None
    process: int | None
    gpu: str | None
    lost: bool
    evaluator: bool

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Attempt:
    """An attempt at training a unit, from its start to the last clock that it left.

    `complete` unless it ended before the unit was trained: it died, failed or was stopped. `where`
    is its last piece.
    """

    start: float
    end: float
    complete: bool
    where: Piece | None


@dataclass(frozen=True)
class PhaseSeconds:
    """Sums over a log: `seconds` by phase, and by part of the training steps.

    `steps` are the training steps that were clocked, the `repeated` ones included.
    """

    seconds: dict[str, float]
    steps: int
    repeated: int


@dataclass(frozen=True)
class MeanSeconds:
    """Mean seconds of a training step by its `parts`, or of a response under EVALUATE, over `rows`.

    `recent` is the mean of all parts together over the latest of these rows.
    """

    rows: int
    parts: dict[str, float]
    recent: float

    @property
    def whole(self) -> float:
        return sum(self.parts.values())


def clock_rows(run: RunReader) -> list[ClockRow]:
    """The log of a unit in the order in which its rows were written."""
    rows = []
    for row in run.timing():
        parts = {part: row[part] for part in STEP_PARTS if part in row}
        rows.append(
            ClockRow(
                phase=row["phase"],
                step=row["step"],
                seconds=row["seconds"] if "seconds" in row else sum(parts.values()),
                parts=parts,
                at=row.get("at"),
                place=(row.get("host"), row.get("process"), row.get("gpu")),
                evaluator=row["phase"] == EVALUATE or row.get("role") == EVALUATOR,
                benchmark=row.get("benchmark"),
                responses=row.get("responses", 0),
                fresh=row.get("draw", 0) != 0,
            )
        )
    return rows


# --- how long work takes ---


def kept_steps(run: RunReader) -> dict[int, ClockRow]:
    """The training steps of a unit, of a repeated one its last attempt."""
    return {row.step: row for row in clock_rows(run) if row.phase == TRAIN}


def phase_seconds(run: RunReader) -> PhaseSeconds:
    """The time that each phase took, also that of steps which a later attempt took again."""

    def summed() -> tuple[dict[str, float], int, int]:
        seconds: dict[str, float] = defaultdict(float)
        steps: list[int] = []
        for row in clock_rows(run):
            if row.phase == TRAIN:
                for part, of_part in row.parts.items():
                    seconds[part] += of_part
                steps.append(row.step)
            else:
                seconds[row.phase] += row.seconds
        return dict(seconds), len(steps), len(steps) - len(set(steps))

    return PhaseSeconds(*run.derived(TIMING, "seconds by phase", summed))


def mean_seconds(run: RunReader, blended: int) -> dict[str, MeanSeconds]:
    """BLENDED, PLAIN or a benchmark → seconds of one such step or response of a unit.

    Its first `blended` steps decode with the teacher. The first row of each kind holds start-up and
    is left out as soon as there are others.
    """

    def means() -> dict[str, tuple[int, dict[str, float], float]]:
        by_kind: dict[str, list[Mapping[str, float]]] = defaultdict(list)
        for row in clock_rows(run):
            if row.phase == TRAIN:
                by_kind[BLENDED if row.step < blended else PLAIN].append(row.parts)
            elif row.phase == EVALUATE and row.benchmark and row.responses:
                by_kind[row.benchmark].append({EVALUATE: row.seconds / row.responses})
        values = {}
        for kind, every in by_kind.items():
            rows = every[1:] or every
            parts = {}
            for part in (*STEP_PARTS, EVALUATE):
                if any(part in row for row in rows):
                    parts[part] = fmean(row.get(part, 0.0) for row in rows)
            recent = fmean(sum(row.values()) for row in rows[-RECENT:])
            values[kind] = len(rows), parts, recent
        return values

    known = run.derived(TIMING, f"mean seconds by kind of work, {blended} blended", means)
    return {kind: MeanSeconds(*values) for kind, values in known.items()}


# --- when and where it was done ---


def pieces(run: RunReader) -> list[Piece]:
    """Work at one unit in the order in which it ended; none where its rows have no time."""

    def read() -> list[list[Any]]:
        return [[*vars(piece).values()] for piece in _pieces(clock_rows(run))]

    return [Piece(*values) for values in run.derived(TIMING, "pieces of work", read)]


def attempts(run: RunReader, done: Sequence[Piece]) -> list[Attempt]:
    """The attempts at training a unit, of which `done` are the pieces."""

    def read() -> list[float]:
        return sorted(datetime.fromisoformat(row["started"]).timestamp() for row in run.attempts())

    starts = run.derived(ATTEMPTS, "starts", read)
    trained = [piece for piece in done if not piece.evaluator]
    if not starts and trained:
        starts = [trained[0].start]
    attempted = []
    for start, following in pairwise([*starts, float("inf")]):
        own = [piece for piece in trained if start <= piece.end < following]
        end = max((piece.end for piece in own), default=start)
        complete = following == float("inf") and (run.trained or run.running)
        attempted.append(Attempt(start, end, complete, own[-1] if own else None))
    return attempted


def seconds_spent(run: RunReader) -> tuple[float, float]:
    """Wall-clock of all attempts at a unit, and of evaluators that worked on its checkpoints."""
    done = pieces(run)
    trained = sum(attempt.end - attempt.start for attempt in attempts(run, done))
    return trained, sum(piece.seconds for piece in done if piece.evaluator)


def _pieces(rows: Sequence[ClockRow]) -> list[Piece]:
    """Join training steps of one place that follow each other without a pause."""
    joined: list[Piece] = []
    latest: dict[Hashable, int] = {}  # the piece of a place that the next step may prolong
    lost = _lost(rows)
    for row, is_lost in zip(rows, lost, strict=True):
        if row.at is None:
            continue
        start, kind = row.at - row.seconds, RESCORE if row.fresh else row.phase
        if kind == TRAIN:
            last = latest.get((row.place, is_lost))
            pause = max(LEAST_PAUSE_S, row.seconds)
            if last is not None and start - joined[last].end <= pause:
                joined[last] = replace(joined[last], end=row.at)
                continue
            latest[row.place, is_lost] = len(joined)
        # Every slice of an evaluation and every start of a role is a piece of its own.
        joined.append(Piece(kind, start, row.at, *row.place, is_lost, row.evaluator))
    return sorted(joined, key=lambda piece: piece.end)


def _lost(rows: Sequence[ClockRow]) -> list[bool]:
    """Which rows are steps that a later attempt took again."""
    lost, earliest = [], float("inf")
    for row in reversed(rows):
        is_step = row.phase == TRAIN
        lost.append(is_step and row.step >= earliest)
        if is_step:
            earliest = min(earliest, row.step)
    return lost[::-1]
