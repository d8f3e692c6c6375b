"""The drivers of sweeps in a runs folder: a lease for each `trb submit`, and requests to stop.

A request, of `trb cancel`, is a file beside the lease. It reaches a driver on any machine that sees
the folder, without a port.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.liveness.lease import Holder, Lease, holder_of

LOOK_S = 1.0  # between two looks for a request
LEASE, REQUEST = ".lease", ".stop"


@dataclass(frozen=True)
class Driver:
    """A driver and the file of its lease."""

    holder: Holder
    path: Path

    def ask_to_stop(self) -> None:
        """Leave the request; the driver sees it within LOOK_S seconds."""
        self.path.with_suffix(REQUEST).touch()

    @property
    def runs(self) -> bool:
        """Whether it still runs."""
        return holder_of(self.path) == self.holder


class Driving:
    """Shows that this process drives the experiment `name`, until `end`. A request calls `stop`."""

    def __init__(self, runs: Path, name: str, stop: Callable[[], None]):
        folder = _folder(runs)
        self._lease = Lease(folder / f"{name}.{socket.gethostname()}.{os.getpid()}{LEASE}")
        self._request = self._lease.path.with_suffix(REQUEST)
        self._request.unlink(missing_ok=True)  # was for an earlier process with this id
        self._stop, self._ended = stop, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True, name="driver")
        self._thread.start()

    def end(self) -> None:
        """Give up the lease, so that `drivers_of` no longer lists this driver."""
        self._ended.set()
        self._thread.join()
        self._lease.release(remove=True)
        self._answer()  # to a request that came since the last look

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._answer()

    def _answer(self) -> None:
        if self._request.exists():
            self._request.unlink(missing_ok=True)
            self._stop()


def drivers_of(runs: Path, name: str) -> list[Driver]:
    """List the processes that drive the experiment of that name now."""
    drivers = []
    for path in sorted(_folder(runs).glob(f"{name}.*{LEASE}")):
        holder = holder_of(path)
        # A name may hold dots: the pattern for `a` also matches the lease of `a.b`.
        if holder is not None and path.name == f"{name}.{holder.host}.{holder.pid}{LEASE}":
            drivers.append(Driver(holder, path))
    return drivers


def _folder(runs: Path) -> Path:
    return runs / ".locks" / "submits"
