"""Keeps W&B up to date beside a sweep and after it. W&B may lag, fail or hang: no sweep waits or
fails for it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import UserError
from orchestrator.monitor import status
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.study import Study
from orchestrator.tracking.login import (
    chosen_mode,
    leet_command,
    logged_in,
    mirror_folder,
    noted_project,
    server_url,
    sync_command,
    was_given,
)
from orchestrator.tracking.projection import OPEN, Projection, Table, project, results_id

EVERY_S = 30.0
HEARTBEAT_S = 120.0  # W&B marks a run that is silent for some minutes as crashed
ASKING_S = 5.0
PATIENCE_S = 60.0  # without a run getting through
REASON_CHARACTERS = 160


@dataclass
class Mirror:
    """The mirror of one submission; `say` shows a line, `again` is the command that catches up."""

    study: Study
    again: str
    say: Callable[[str], None]
    every: float = EVERY_S
    patience: float = PATIENCE_S
    _trouble: str | None = None  # why W&B is behind, if it is
    _moved: float = 0.0  # when a run last got through
    _thread: threading.Thread | None = field(default=None, repr=False)

    def announce(self) -> None:
        """Say in one line where W&B shows the sweep."""
        match self._mode():
            case "online":
                self.say(f"W&B: {self._page() or f'online at {server_url()}'}")
            case "offline":
                self.say(
                    f"W&B: offline (`wandb login` puts runs online); shown by: {leet_command(self.study.runs)}"
                )

    @contextmanager
    def following(self) -> Iterator[None]:
        """Send committed rows while the body runs; offline, units that are done or failed."""
        if self._mode() == "disabled":
            yield
            return
        ended = threading.Event()
        self._start(self._follow, ended)
        try:
            yield
        finally:
            ended.set()
            self._wait()

    def catch_up(self, tables: dict[str, Table], notes: list[str]) -> None:
        """Send everything that is missing, and the results tables; say in one line if W&B stays
        behind.
        """
        if self._mode() == "disabled":
            return
        if self._thread is None:
            self._start(self._send, tables, notes, False)
            self._wait()
        if self._trouble:
            self.say(f"W&B lags behind ({self._trouble}); catch up with: {self.again}")
        elif self._mode() == "online":
            page = noted_project(self.study.experiment.runtime.wandb_project, self.study.runs)
            self.say(f"W&B: {page or f'online at {server_url()}'}")
        else:
            self.say(f"W&B is offline; to a server: {sync_command(self.study.runs)}")

    def _mode(self) -> str:
        return chosen_mode(self.study.experiment.runtime.wandb)

    def _where(self) -> str:
        return server_url() if self._mode() == "online" else str(mirror_folder(self.study.runs))

    def _page(self) -> str | None:
        """The project's page: as noted, or from the server if it answers within seconds."""
        project_name = self.study.experiment.runtime.wandb_project
        known = noted_project(project_name, self.study.runs)
        if known or not logged_in():
            return known
        answers: list[str | None] = []
        asking = threading.Thread(
            target=_ask_for_page, args=(project_name, answers), daemon=True, name="page"
        )
        asking.start()
        asking.join(ASKING_S)
        return answers[0] if answers else None

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        self._thread = threading.Thread(target=work, args=arguments, daemon=True, name="mirror")
        self._thread.start()

    def _wait(self) -> None:
        """Wait for the thread, but no longer than `patience` seconds without progress of a run.

        A thread that hangs is left alone. It is a daemon, so it ends with the process. It stays in
        `_thread`, so that `catch_up` starts no second thread, which would hang at the same place.
        """
        assert self._thread is not None
        self._moved = time.monotonic()
        while (
            self._thread.is_alive() and (left := self._moved + self.patience - time.monotonic()) > 0
        ):
            self._thread.join(left)
        if self._thread.is_alive():
            self._trouble = self._trouble or f"{self._where()} does not answer"
        else:
            self._thread = None

    def _follow(self, ended: threading.Event) -> None:
        while not ended.wait(self.every):
            before = self._trouble
            self._send({}, [], True)
            if self._trouble and not before:
                self.say(f"W&B is behind ({self._trouble}); the sweep goes on")

    def _send(self, tables: dict[str, Table], notes: list[str], goes_on: bool) -> None:
        try:
            self._send_stale(tables, notes, goes_on)
            self._trouble = None
        except (
            Exception
        ) as error:  # a broken wandb-core raises more than wandb's errors, and none may end a sweep
            reason = " ".join(str(error).split())[:REASON_CHARACTERS] or type(error).__name__
            self._trouble = f"{self._where()}: {reason}"

    def _send_stale(self, tables: dict[str, Table], notes: list[str], goes_on: bool) -> None:
        """Send the runs that W&B shows out of date. Raises wandb's errors; runs sent before that
        are noted as sent.
        """
        mode = self._mode()
        stale = stale_projections(self.study, mode, goes_on)
        known = not tables or was_given(
            results_id(self.study.experiment), [tables, notes], self.study.runs, mode
        )
        if known and not stale:
            return
        if mode == "online" and not logged_in():
            raise UserError("no key: `wandb login`, or WANDB_API_KEY in the environment")
        from orchestrator.tracking import upload  # wandb takes a second to import

        for projection in stale:
            upload.mirror(self.study.experiment, projection, self.study.runs, mode)
            self._moved = time.monotonic()  # read by `_wait` in the other thread
        if not known:
            upload.mirror_results(self.study.experiment, tables, notes, self.study.runs, mode)


def stale_projections(study: Study, mode: str, goes_on: bool = False) -> list[Projection]:
    """Units that W&B shows out of date; `goes_on` says whether a sweep of them runs in this
    process.

    Offline, a run cannot be left open, so a unit is sent when it is done or the sweep has ended.
    Online, open runs are sent now and then even without new rows, so that W&B does not take them
    for crashed.
    """
    study, stale = with_confirmation(study.snapshot()), []
    for unit, unit_status in zip(study.units, status.collect(study), strict=True):
        shown = project(study.setup_of(unit), unit, study.reader(unit), unit_status.state, goes_on)
        if shown.is_empty or (mode == "offline" and shown.outcome == OPEN):
            continue
        within = HEARTBEAT_S if shown.outcome == OPEN else math.inf
        if not was_given(unit.id, shown.content, study.runs, mode, within):
            stale.append(shown)
    return stale


def _ask_for_page(project_name: str, answers: list[str | None]) -> None:
    """Append the page to `answers`, since a thread returns nothing. Errors show up later, when runs
    are sent.
    """
    from orchestrator.tracking.upload import project_page

    with suppress(Exception):
        answers.append(project_page(project_name))
