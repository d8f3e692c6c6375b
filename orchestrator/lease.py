"""One writer for each unit: a lock file beside the run directories.

On one host `flock` decides, and the kernel drops the lock with its process. Where the file system is shared, the
holder also touches the file; a file touched lately by another host means that the unit is taken.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from pathlib import Path

HEARTBEAT_S = 15.0
STALE_AFTER_S = 90.0


class LeaseHeld(RuntimeError):
    """Another process works on the unit."""


class Lease:
    """Held from construction until `release` or the end of the process. Raises LeaseHeld."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise LeaseHeld(f"{path.stem} is being run by {_describe(path)}") from None
        if _held_by_other_host(path):
            self._file.close()
            raise LeaseHeld(f"{path.stem} is being run by {_describe(path)}")
        self._file.truncate(0)
        self._file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
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


def is_held(path: Path) -> bool:
    """Whether some process holds the lease now."""
    if not path.exists():
        return False
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return _held_by_other_host(path)


def _held_by_other_host(path: Path) -> bool:
    holder = _holder(path)
    recent = time.time() - path.stat().st_mtime < STALE_AFTER_S
    return holder is not None and holder["host"] != socket.gethostname() and recent


def _holder(path: Path) -> dict[str, str] | None:
    try:
        return json.loads(path.read_text())
    except ValueError:
        return None


def _describe(path: Path) -> str:
    holder = _holder(path)
    return f"process {holder['pid']} on {holder['host']}" if holder else "another process"
