"""Reads the run directories again and again, on a thread of its own: units and table."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from analysis.facts.evidence import Depth
from analysis.table.model import Table, results_table
from orchestrator.errors import UserError, one_line
from orchestrator.monitor import status
from orchestrator.monitor.status import Overview
from orchestrator.selection.study import Study

REFRESH_S = 1.0  # between two readings at least
# Shares of a core that reading may take: while a process works on the sweep, and while none does.
WHILE_DRIVEN, WHILE_IDLE = 0.1, 0.015


@dataclass(frozen=True)
class Progress:
    """The units of a sweep at one moment, as `study`, a snapshot, found them.

    A thread that reads more of the study holds the `lock`, since its caches may be written
    meanwhile.
    """

    study: Study
    overview: Overview
    read_at: float  # seconds since 1970
    lock: threading.Lock


@dataclass
class SweepReader:
    """Reads a sweep until `ended`, and hands each result on from its own thread.

    `on_progress` gets every reading. `on_table` gets the results table after readings in which a
    unit reached another state or score, or else the reason why none can be made. Intervals take
    longer than all else, so the first table of all comes without them.
    """

    study: Study
    on_progress: Callable[[Progress], object]
    on_table: Callable[[Table | None, str], object]
    ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _asked: threading.Event = field(default_factory=threading.Event)
    _scored: object = None  # the states and scores that the last table was made of

    def run(self) -> None:
        """Read until `ended` is set."""
        while not self.ended.is_set():
            begun = time.thread_time()
            driven = self.read()
            self._asked.wait(pause_after(time.thread_time() - begun, driven))
            self._asked.clear()

    def read_now(self) -> None:
        """Cut the present pause short."""
        self._asked.set()

    def end(self) -> None:
        """Let `run` return once the present reading is over."""
        self.ended.set()
        self._asked.set()

    def read(self) -> bool:
        """Read once; returns whether a process works on the sweep."""
        study = self.study.snapshot()
        # The first screen has scores at once, instead of waiting for intervals.
        if self._scored is None:
            self._make_table(study, "scores")
        overview = status.overview(study)
        self.on_progress(Progress(study, overview, time.time(), self._lock))
        scored = _scored(overview)
        if scored != self._scored and not self.ended.is_set():
            self._scored = scored
            self._make_table(study, "intervals")
        with self._lock:
            study.remember()
        return overview.driven

    def _make_table(self, study: Study, depth: Depth) -> None:
        try:
            self.on_table(results_table(study, depth=depth), "")
        except UserError as error:  # a damaged file, or other problems than those of a run before
            self.on_table(None, one_line(error))


def pause_after(spent: float, driven: bool) -> float:
    """Seconds until the next reading, after one that took so much CPU time."""
    return max(REFRESH_S, spent / (WHILE_DRIVEN if driven else WHILE_IDLE))


def _scored(overview: Overview) -> object:
    """The part of an overview that the results table depends on."""
    found = []
    for s in overview.units:
        found.append((s.id, s.state, s.best_step, s.score, s.latest_step, s.latest_score))
    return found
