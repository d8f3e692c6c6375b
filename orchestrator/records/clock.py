"""When and how long units were worked on, from `timing.jsonl` and `attempts.jsonl`.

All times are seconds: durations, or since 1970 (UTC). Recovery does not reproduce clocks, so
`timing.jsonl` may hold a training step several times: once for each attempt that took it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from orchestrator.records.log import EVALUATE, EVALUATOR, STEP_PARTS, TRAIN
from orchestrator.records.rundir import ATTEMPTS, TIMING, RunReader

RESCORE = "rescore"  # work on fresh samples of a selected checkpoint
BLENDED, PLAIN = "blended step", "plain step"  # with the teacher while decoding, and without it
RECENT = 20  # latest rows, over which a unit's present speed is averaged

Span = tuple[float, float]  # seconds since 1970 (UTC): start and end


@dataclass(frozen=True)
class ClockRow:
    """One row of `timing.jsonl`: work of a `phase` that took `seconds` and ended at the time `at`.

    `parts` are the seconds of a training step by STEP_PARTS, empty for other phases. `responses`
    counts the responses that an evaluation sampled to a `benchmark`; they are `fresh` if selection
    does not use them. `tokens` counts those that were sampled. `place` is the host, the process and
    the GPU (of CUDA_VISIBLE_DEVICES). Fields that older rows lack are None.
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
    tokens: int | None


class Worked(NamedTuple):
    """Start and end of the attempts at training a unit, and of each piece of work by evaluators.

    An attempt ends with its last clocked work.
    """

    attempts: list[Span]
    evaluators: list[Span]


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
                tokens=row.get("tokens"),
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


def token_rates(run: RunReader) -> list[list[Any]]:
    """Host, start, end and tokens a second of each clocked piece of work that sampled tokens."""

    def rates() -> list[list[Any]]:
        pieces = []
        for row in clock_rows(run):
            if row.tokens is not None and row.at is not None and row.seconds > 0:
                start, rate = row.at - row.seconds, row.tokens / row.seconds
                pieces.append([row.place[0] or "", start, row.at, rate])
        return pieces

    return run.derived(TIMING, "tokens a second by host and time", rates)


# --- when it was done ---


def worked(run: RunReader) -> Worked:
    """When a unit was worked on; rows without a time count for nothing."""

    def read_starts() -> list[float]:
        return sorted(datetime.fromisoformat(row["started"]).timestamp() for row in run.attempts())

    def read_rows() -> list[list[Any]]:
        rows = []
        for row in clock_rows(run):
            if row.at is not None:
                rows.append([row.at - row.seconds, row.at, row.evaluator])
        return sorted(rows, key=lambda row: row[1])

    starts = run.derived(ATTEMPTS, "starts", read_starts)
    rows = run.derived(TIMING, "start, end and evaluator of rows", read_rows)
    trained = [(start, end) for start, end, evaluator in rows if not evaluator]
    if not starts and trained:
        # The user may have removed a damaged `attempts.jsonl`: all work counts as one attempt then.
        starts = [trained[0][0]]
    attempts = []
    for start, following in pairwise([*starts, float("inf")]):
        ends = [end for _, end in trained if start <= end < following]
        attempts.append((start, max(ends, default=start)))
    return Worked(attempts, [(start, end) for start, end, evaluator in rows if evaluator])


def seconds_spent(run: RunReader) -> tuple[float, float]:
    """Seconds of all attempts at a unit, and seconds of evaluators that sampled its checkpoints."""
    trained, sampled = (sum(end - start for start, end in spans) for spans in worked(run))
    return trained, sampled
