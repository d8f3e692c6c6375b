"""When and where units were worked at, and what that cost in device-hours: from the clocks in their
directories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal

from orchestrator.config import Placement
from orchestrator.experiment.evaluation_protocol import FRESH
from orchestrator.records.columns import EVALUATE, EVALUATOR, STEP_PARTS, TRAIN
from orchestrator.records.rundir import ATTEMPTS, TIMING, RunReader
from orchestrator.selection.study import Study

LEAST_PAUSE_S = (
    1.0  # between two rows; and as long as the work of the later one, below which it is none
)
RESCORE = "rescore"  # the kind of a piece: fresh samples of a selected checkpoint
Device = Literal["GPU", "core"]


@dataclass(frozen=True)
class Piece:
    """Work of one kind at one unit without a pause, from `start` to `end` (seconds since 1970,
    UTC).

    `kind` is START, TRAIN, EVALUATE or RESCORE. Of steps that were taken again after a kill the
    first ones are `lost`. Host, process and `gpu` (of CUDA_VISIBLE_DEVICES) are None where the row
    lacks them.
    """

    kind: str
    start: float
    end: float
    host: str | None
    process: int | None
    gpu: str | None
    lost: bool
    evaluator: bool  # done by an evaluator and not by an attempt at the unit

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


def pieces(run: RunReader) -> list[Piece]:
    """Work at one unit in the order in which it ended; none without clocks."""
    rows = run.derived(TIMING, "pieces of work", lambda: _pieces(run.timing()))
    return [Piece(*row) for row in rows]


def attempts(run: RunReader, done: Sequence[Piece]) -> list[Attempt]:
    """The attempts at training a unit, of which `done` are the pieces."""
    starts = run.derived(ATTEMPTS, "starts", lambda: _starts(run))
    trained = [piece for piece in done if not piece.evaluator]
    if not starts and trained:
        starts = [trained[0].start]
    found = []
    for start, following in pairwise([*starts, float("inf")]):
        own = [piece for piece in trained if start <= piece.end < following]
        end = max((piece.end for piece in own), default=start)
        complete = following == float("inf") and (run.trained or run.running)
        found.append(Attempt(start, end, complete, own[-1] if own else None))
    return found


def seconds_spent(run: RunReader) -> tuple[float, float]:
    """Wall-clock of all attempts at a unit, and of evaluators that worked on its checkpoints."""
    done = pieces(run)
    trained = sum(attempt.end - attempt.start for attempt in attempts(run, done))
    return trained, sum(piece.seconds for piece in done if piece.evaluator)


# --- what it costs ---


def device_of(study: Study) -> Device:
    """The device whose hours an experiment counts: GPUs, or cores where none of its units uses a
    GPU.
    """
    placements = [study.experiment.runtime.placement, *(unit.placement for unit in study.units)]
    return "GPU" if any(placement.gpus for placement in placements) else "core"


def devices_of(placement: Placement, device: Device) -> float:
    """How many GPUs or cores a process with this placement holds."""
    return float(placement.gpus) if device == "GPU" else placement.cpus


def hours_spent(study: Study) -> float:
    """Device-hours of all that was clocked in the directories of a study."""
    device, seconds = device_of(study), 0.0
    evaluators = devices_of(study.experiment.runtime.placement.of_evaluator, device)
    for unit in study.units:
        training, evaluating = seconds_spent(study.reader(unit))
        seconds += devices_of(unit.placement, device) * training + evaluators * evaluating
    return seconds / 3600


# --- from rows to pieces ---


def _starts(run: RunReader) -> list[float]:
    return sorted(datetime.fromisoformat(row["started"]).timestamp() for row in run.attempts())


def _pieces(rows: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """The fields of each piece; rows of one kind and place that follow each other without a pause
    are one.
    """
    found: list[list[Any]] = []
    last: dict[tuple[Any, ...], list[Any]] = {}  # by all that a row and its piece have in common
    for row, lost in zip(rows, _lost(rows), strict=True):
        if "at" not in row:  # as versions wrote it that did not note the time
            continue
        seconds = (
            row["seconds"] if "seconds" in row else sum(row.get(part, 0.0) for part in STEP_PARTS)
        )
        start, end = row["at"] - seconds, row["at"]
        kind = RESCORE if row.get("draw") == FRESH else row["phase"]
        where = row.get("host"), row.get("process"), row.get("gpu")
        evaluator = row["phase"] == EVALUATE or row.get("role") == EVALUATOR
        key = (kind, *where, lost, evaluator)
        piece = last.get(key)
        # A slice is a piece of its own, and so is the start of a role: only steps go on into each
        # other.
        if kind == TRAIN and piece is not None and start - piece[2] <= max(LEAST_PAUSE_S, seconds):
            piece[2] = end
            continue
        last[key] = [kind, start, end, *where, lost, evaluator]
        found.append(last[key])
    return sorted(found, key=lambda piece: piece[2])


def _lost(rows: Sequence[dict[str, Any]]) -> list[bool]:
    """Which rows are steps that a later attempt took again."""
    lost, earliest = [], float("inf")
    for row in reversed(rows):
        is_step = row["phase"] == TRAIN
        lost.append(is_step and row["step"] >= earliest)
        if is_step:
            earliest = min(earliest, row["step"])
    return lost[::-1]
