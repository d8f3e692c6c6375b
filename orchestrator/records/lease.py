"""One writer for each unit: a lock file beside the run directories.

On one host `flock` decides, and the kernel drops the lock with its process. Where the file system is shared, the
holder also touches the file; a file touched lately by another host means that the unit is taken. Whoever only looks
reads what the holder noted of itself, which needs no lock and no write access.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.records.files import damaged
from orchestrator.records.locks import take_lock

HEARTBEAT_S = 15.0
STALE_AFTER_S = 90.0
# A killed predecessor's processes may still hold the unit, and a dead host's heartbeat looks alive for a while.
LEASE_PATIENCE_S = STALE_AFTER_S + 2 * HEARTBEAT_S


class LeaseHeld(RuntimeError):
    """Another process works on the unit."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lease; `started` tells a process from a later one with its number, where the system says it."""

    host: str
    pid: int
    started: str | None = None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this host, if it still runs."""
        return self.host == socket.gethostname()


class Lease:
    """Held from construction until `release` or the end of the process. Raises LeaseHeld."""

    def __init__(self, path: Path):
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+")
        except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
            raise damaged(path, f"cannot be locked ({error.strerror})", "remove it") from None
        if not take_lock(self._file, wait=False):
            self._file.close()
            raise LeaseHeld(f"{path.stem} is being run by {_holder(path) or 'another process'}")
        holder = _holder(path)
        if holder and not holder.is_here and _beats(path, _file_system_time(path.parent)):
            self._file.close()
            raise LeaseHeld(f"{path.stem} is being run by {holder}")
        self._file.truncate(0)
        own = Holder(socket.gethostname(), os.getpid(), _start_of(os.getpid()))
        self._file.write(json.dumps(asdict(own)))
        self._file.flush()
        self._ended = threading.Event()
        threading.Thread(target=self._beat, daemon=True, name="lease").start()

    def release(self) -> None:
        """Let others work on the unit."""
        self._ended.set()
        if not self._file.closed:
            self._file.truncate(0)
            self._file.close()

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            os.utime(self._path)


def holder_of(path: Path) -> Holder | None:
    """Who holds the lease now, as far as its file tells; a file that is not ours holds nothing."""
    holder = _holder(path)
    if holder is None:
        return None
    alive = _runs(holder) if holder.is_here else _beats(path, time.time())
    return holder if alive else None


def _holder(path: Path) -> Holder | None:
    """What the file says of its holder; None if it says nothing that one wrote."""
    try:
        value = json.loads(path.read_bytes())
        host, pid, started = value["host"], value["pid"], value.get("started")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return Holder(host, pid, started) if type(host) is str and type(pid) is int and pid > 0 else None


def _runs(holder: Holder) -> bool:
    """Whether a process of this host is still the one that wrote the note."""
    try:
        os.kill(holder.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        pass
    start = _start_of(holder.pid)
    return start is None or holder.started is None or start == holder.started


def _start_of(pid: int) -> str | None:
    """When a process started, in clock ticks since the host did; empty if it has ended; None where no system says."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in ("Z", "X") else fields[19]


def _beats(path: Path, now: float) -> bool:
    """Whether the holder touched the file lately."""
    try:
        return now - path.stat().st_mtime < STALE_AFTER_S
    except OSError:
        return False


def _file_system_time(folder: Path) -> float:
    """The time by the clock that stamps files in `folder`: on a shared file system not always this host's."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime
