"""The interface of trackers, which show a sweep outside of its run directories, in W&B for example.

docs/add-a-tracker.md explains how to write a tracker. A `Mirror` calls it in a thread beside the
sweep, so a tracker may be slow, hang or raise.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from analysis.facts.facts import facts
from analysis.facts.units import look, machines_now
from orchestrator.errors import refuse
from orchestrator.monitor.status import Overview
from orchestrator.selection.study import Study
from orchestrator.tracking.projection import (
    Projection,
    Results,
    TrackedTable,
    progress_of,
    project,
)
from orchestrator.user_code import named_function

KEY = "runtime.tracker"


class Tracker(Protocol):
    """Shows the projections of one study in one place.

    The program reads nothing back from a tracker. After `show` the tracker has each row of the
    projection once and as it is now: a kill takes uncommitted rows back, and a score may change.
    """

    @property
    def name(self) -> str:
        """Its name in messages."""
        ...

    @property
    def place(self) -> str:
        """The server or folder, for the message that it cannot be reached."""
        ...

    def announcement(self) -> str:
        """One line, before a sweep: where to watch it."""
        ...

    def conclusion(self) -> str:
        """One line, after everything was shown: where to find it."""
        ...

    def show(self, projection: Projection) -> None:
        """Show a unit. Called often, and mostly with a unit that is shown already.

        It may raise any exception; the next call tries again.
        """
        ...

    def show_results(self, results: Results) -> None:
        """Show tables, progress and machines, instead of earlier ones; raises as `show` does.

        Called as often as `show`; at the end alone if the tracker has a false `shows_progress`.
        """
        ...


# None where the user has switched the tracker off.
OpenTracker = Callable[[Study], Tracker | None]


@dataclass(frozen=True)
class TrackerRow:
    """A shipped tracker: its function as `module:function`, and the packages that it imports.

    `packages` are those beyond the default install, under their names for pip.
    """

    function: str
    packages: tuple[str, ...] = ()


# A new row also needs its name in `rules.A_TRACKER`, and its packages in setup.cfg.
TRACKERS = {
    "wandb": TrackerRow("orchestrator.tracking.wandb_tracker:open_tracker"),
    "tensorboard": TrackerRow("orchestrator.tracking.tensorboard:open_tracker", ("tensorboard",)),
}


def tracker_function(name: str) -> OpenTracker:
    """The function that opens tracker `name`, without calling it.

    Raises UserError for an unknown name, and where its packages are not installed.
    """
    if name not in TRACKERS:
        return named_function(KEY, name, TRACKERS)[0]
    for package in TRACKERS[name].packages:
        if importlib.util.find_spec(package) is None:
            others = [other for other, row in TRACKERS.items() if not row.packages]
            remedy = f"`pip install {package}` first ({package} is not installed here)"
            raise refuse(KEY, name, f"{', '.join(others)}, or {remedy}")
    module, _, function = TRACKERS[name].function.partition(":")
    return getattr(importlib.import_module(module), function)


# --- a tracker beside a sweep ---
#
# No sweep fails for its tracker. Once its work is done, a sweep waits for the tracker only while
# runs still reach it, and no longer than PATIENCE_S from one run to the next.

EVERY_S = 30.0
PATIENCE_S = 60.0  # the longest wait for the next run to reach the tracker
REASON_CHARACTERS = 160


@dataclass
class Mirror:
    """The tracker of one submission; `say` shows a line, `again` is the command that catches up.

    It shows and says nothing if the user has switched the tracker off.
    """

    study: Study
    again: str
    say: Callable[[str], None]
    every: float = EVERY_S
    patience: float = PATIENCE_S
    _trouble: str | None = None  # why the tracker is behind, if it is
    _finished: frozenset[tuple[str, str]] = frozenset()  # families that `_tables` rest on
    _tables: tuple[dict[str, TrackedTable], list[str]] = field(default=({}, []), repr=False)
    _moved: float = 0.0  # when a run last reached the tracker
    _thread: threading.Thread | None = field(default=None, repr=False)

    @cached_property
    def tracker(self) -> Tracker | None:
        """The experiment's tracker. UserError where it is unknown or not installed."""
        return tracker_function(self.study.experiment.runtime.tracker)(self.study)

    def announce(self) -> None:
        """Say in one line where the tracker shows the sweep."""
        if self.tracker is not None:
            self.say(self.tracker.announcement())

    @contextmanager
    def following(self) -> Iterator[None]:
        """Show rows, progress and tables while the body runs."""
        if self.tracker is None:
            yield
            return
        ended = threading.Event()
        self._start(lambda tracker: self._follow(tracker, ended), self.tracker)
        try:
            yield
        finally:
            ended.set()
            self._wait(self.tracker)

    def catch_up(self, tables: dict[str, TrackedTable], notes: list[str]) -> None:
        """Show everything that is missing, and the results tables; say if the tracker lags."""
        tracker = self.tracker
        if tracker is None:
            return
        self._tables = tables, notes
        if self._thread is None:
            self._start(lambda tracker: self._send(tracker, False), tracker)
            self._wait(tracker)
        if self._trouble:
            self.say(f"{tracker.name} lags behind ({self._trouble}); catch up with: {self.again}")
        else:
            self.say(tracker.conclusion())

    def _start(self, work: Callable[[Tracker], None], tracker: Tracker) -> None:
        self._thread = threading.Thread(target=work, args=[tracker], daemon=True, name="mirror")
        self._thread.start()

    def _wait(self, tracker: Tracker) -> None:
        """Wait for the thread, but no longer than `patience` seconds without progress of a run.

        A thread that hangs is left alone. It is a daemon, so it ends with the process. It stays in
        `_thread`, so that `catch_up` starts no second thread, which would hang at the same place.
        """
        assert self._thread is not None
        self._moved = time.monotonic()
        while self._thread.is_alive():
            left = self._moved + self.patience - time.monotonic()
            if left <= 0:
                break
            self._thread.join(left)
        if self._thread.is_alive():
            self._trouble = self._trouble or f"{tracker.place} does not answer"
        else:
            self._thread = None

    def _follow(self, tracker: Tracker, ended: threading.Event) -> None:
        while not ended.wait(self.every):
            before = self._trouble
            self._send(tracker, True)
            if self._trouble and not before:
                self.say(f"{tracker.name} is behind ({self._trouble}); the sweep goes on")

    def _send(self, tracker: Tracker, goes_on: bool) -> None:
        """Show all units, then the results; note in `_trouble` why that failed, if it did."""
        try:
            study, overview = look(self.study)
            for projection in projections(study, overview, goes_on):
                tracker.show(projection)
                self._moved = time.monotonic()  # read by `_wait` in the other thread
            if not goes_on or getattr(tracker, "shows_progress", True):
                if goes_on and overview.finished != self._finished:
                    self._finished, self._tables = overview.finished, tables_of(study, overview)
                progress, machines = progress_of(overview), machines_now(study)
                shown = Results(study.experiment, *self._tables, progress, machines, goes_on)
                tracker.show_results(shown)
            self._trouble = None
        except Exception as error:  # a tracker's libraries may raise anything; the sweep goes on
            reason = " ".join(str(error).split())[:REASON_CHARACTERS] or type(error).__name__
            self._trouble = f"{tracker.place}: {reason}"


def projections(study: Study, overview: Overview, goes_on: bool = False) -> Iterator[Projection]:
    """Yield the units that show anything; `goes_on` while this process runs their sweep."""
    families = {family.key: family for family in overview.families}
    for unit, known in zip(study.units, overview.units, strict=True):
        family = families.get((unit.setup, known.family)) if unit.has_scores else None
        shown = project(study, unit, known, family, goes_on)
        if not shown.is_empty:
            yield shown


def tables_of(study: Study, overview: Overview) -> tuple[dict[str, TrackedTable], list[str]]:
    """The results tables so far with their notes; without what takes most of the time."""
    from analysis.results import tracked_tables  # pandas takes half a second to import
    from analysis.table.model import table_of

    table = table_of(facts(study, depth="intervals", overview=overview))
    return tracked_tables(table), [*table.notes, *table.verdict.lines()]
