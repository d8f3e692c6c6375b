"""When, where and how long units were worked on, from `timing.jsonl` and `attempts.jsonl`.

All times are seconds: durations, or since 1970 (UTC). Recovery does not reproduce clocks, so
`timing.jsonl` may hold a training step several times: once for each attempt that took it.
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
RECENT = 20  # latest rows, over which a unit's present speed is averaged
# A training step begins a new piece after a pause that is longer than this and than the step.
LEAST_PAUSE_S = 1.0


@dataclass(frozen=True)
class ClockRow:
    """One row of `timing.jsonl`: work of a `phase` that took `seconds` and ended at the time `at`.

    `parts` are the seconds of a training step by STEP_PARTS, empty for other phases. `responses`
    counts the responses that an evaluation sampled to a `benchmark`; they are `fresh` if selection
    does not use them. `place` is the host, the process and the GPU (of CUDA_VISIBLE_DEVICES).
    Fields that older rows lack are None.
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
    """Work of one kind on one unit without a pause, from `start` to `end`.

    `kind` is START, TRAIN, EVALUATE or RESCORE. Training steps that a later attempt took again are
    `lost`. Host, process and GPU come from `ClockRow.place`.
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
    """An attempt at training a unit, from its start to the end of its last clocked work.

    An attempt is `complete` if it trained the unit to the end or still runs; one that died, failed
    or was stopped is not. `where` is its last piece.
    """

    start: float
    end: float
    complete: bool
    where: Piece | None


@dataclass(frozen=True)
class PhaseSeconds:
    """Sums over `timing.jsonl`: `seconds` by part of a training step, and by each other phase.

    `steps` counts the clocked training steps, including those that were `repeated`.
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
    """The rows of a unit's `timing.jsonl` in the order in which they were written."""
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
    """Step → row of each training step; a repeated step has the row of its last attempt."""
    return {row.step: row for row in clock_rows(run) if row.phase == TRAIN}


def phase_seconds(run: RunReader) -> PhaseSeconds:
    """The time that each phase took, including steps that a later attempt took again."""

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

    Its first `blended` steps decode with the teacher. The first row of each kind includes start-up,
    so it counts only while it is the only one.
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
    """The pieces of work on one unit in the order of their ends; rows without a time give none."""

    def read() -> list[list[Any]]:
        return [[*vars(piece).values()] for piece in _pieces(clock_rows(run))]

    return [Piece(*values) for values in run.derived(TIMING, "pieces of work", read)]


def attempts(run: RunReader, done: Sequence[Piece]) -> list[Attempt]:
    """The attempts at training a unit; `done` are the unit's pieces of work."""

    def read() -> list[float]:
        return sorted(datetime.fromisoformat(row["started"]).timestamp() for row in run.attempts())

    starts = run.derived(ATTEMPTS, "starts", read)
    trained = [piece for piece in done if not piece.evaluator]
    if not starts and trained:
        # The user may have removed a damaged `attempts.jsonl`: all work counts as one attempt then.
        starts = [trained[0].start]
    attempted = []
    for start, following in pairwise([*starts, float("inf")]):
        end, last = start, None
        for piece in trained:  # in the order of their ends
            if start <= piece.end < following:
                end, last = piece.end, piece
        complete = following == float("inf") and (run.trained or run.running)
        attempted.append(Attempt(start, end, complete, last))
    return attempted


def seconds_spent(run: RunReader) -> tuple[float, float]:
    """Seconds of all attempts at a unit, and seconds of evaluators that sampled its checkpoints."""
    done = pieces(run)
    trained = sum(attempt.end - attempt.start for attempt in attempts(run, done))
    return trained, sum(piece.seconds for piece in done if piece.evaluator)


def _pieces(rows: Sequence[ClockRow]) -> list[Piece]:
    """Join training steps that follow each other without a pause at one place."""
    joined: list[Piece] = []
    latest: dict[Hashable, int] = {}  # the piece of a place that the next step may prolong
    lost = _lost(rows)
    for row, is_lost in zip(rows, lost, strict=True):
        if row.at is None:
            continue
        start = row.at - row.seconds
        kind = RESCORE if row.fresh else row.phase
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
    """Whether each row is a training step that a later attempt took again."""
    lost: list[bool] = []
    earliest = float("inf")  # the first step of the rows after this one
    for row in reversed(rows):
        is_step = row.phase == TRAIN
        lost.append(is_step and row.step >= earliest)
        if is_step:
            earliest = min(earliest, row.step)
    return lost[::-1]
