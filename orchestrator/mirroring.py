"""Keeps W&B up to date beside a sweep and after it. W&B may lag, fail or hang: no sweep waits or fails for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.config import Experiment
from orchestrator.errors import UserError
from orchestrator.grid import Unit
from orchestrator.wandb_mode import (
    Table,
    chosen_mode,
    logged_in,
    mirror_folder,
    results_id,
    server_url,
    stale_units,
    was_given,
)

EVERY_S = 30.0
PATIENCE_S = 60.0  # without a run getting through
REASON_CHARACTERS = 160


@dataclass
class Mirror:
    """The mirror of one submission; `say` shows a line, `again` is the command that catches up."""

    experiment: Experiment
    units: list[Unit]
    runs: Path
    again: str
    say: Callable[[str], None]
    every: float = EVERY_S
    patience: float = PATIENCE_S
    _trouble: str | None = None  # why W&B is behind, if it is
    _moved: float = 0.0  # when a run last got through
    _thread: threading.Thread | None = field(default=None, repr=False)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Send what is committed while the body runs, if W&B is online; offline one projection at the end is enough."""
        if self._mode() != "online":
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
        """Everything that is missing, and the results tables; one line if W&B stays behind."""
        if self._mode() == "disabled":
            return
        if self._thread is None:
            self._start(self._send, tables, notes)
            self._wait()
        if self._trouble:
            self.say(f"W&B lags behind ({self._trouble}); catch up with: {self.again}")

    def _mode(self) -> str:
        return chosen_mode(self.experiment.runtime.wandb)

    def _where(self) -> str:
        return server_url() if self._mode() == "online" else str(mirror_folder(self.runs))

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        self._thread = threading.Thread(target=work, args=arguments, daemon=True, name="mirror")
        self._thread.start()

    def _wait(self) -> None:
        """Until the thread is through, or nothing moved for `patience` seconds; then it is left to itself."""
        assert self._thread is not None
        self._moved = time.monotonic()
        while self._thread.is_alive() and (left := self._moved + self.patience - time.monotonic()) > 0:
            self._thread.join(left)
        if self._thread.is_alive():
            self._trouble = self._trouble or f"{self._where()} does not answer"
        else:
            self._thread = None

    def _follow(self, ended: threading.Event) -> None:
        while not ended.wait(self.every):
            before = self._trouble
            self._send({}, [])
            if self._trouble and not before:
                self.say(f"W&B is behind ({self._trouble}); the sweep goes on")

    def _send(self, tables: dict[str, Table], notes: list[str]) -> None:
        try:
            self._send_stale(tables, notes)
            self._trouble = None
        except Exception as error:  # a broken wandb-core raises more than wandb's errors, and none may end a sweep
            reason = " ".join(str(error).split())[:REASON_CHARACTERS] or type(error).__name__
            self._trouble = f"{self._where()}: {reason}"

    def _send_stale(self, tables: dict[str, Table], notes: list[str]) -> None:
        mode = self._mode()
        stale = stale_units(self.experiment, self.units, self.runs, mode)
        known = not tables or was_given(results_id(self.experiment), [tables, notes], self.runs, mode)
        if known and not stale:
            return
        if mode == "online" and not logged_in():
            raise UserError("no key: `wandb login`, or WANDB_API_KEY in the environment")
        from orchestrator import wandb_mirror  # wandb takes a second to import

        for unit in stale:
            wandb_mirror.mirror(self.experiment, [unit], self.runs, mode)
            self._moved = time.monotonic()
        if not known:
            wandb_mirror.mirror_results(self.experiment, tables, notes, self.runs, mode)
