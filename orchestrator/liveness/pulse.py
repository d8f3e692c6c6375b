"""Signs of life of a process: that it runs at all, and that its work gets on.

Work calls `advance` after each small piece: a round of decoding, a micro-batch, an answer graded,
some rows read. Every BEAT_S seconds a thread of the process writes how long ago the last piece was
done. A reader can thus tell a process that is stopped (no beats) from one that hangs (beats, but no
work) and from one that is merely slow. Models are loaded within `loading`: that takes minutes, and
does not show how long a piece of work may take.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from orchestrator.liveness.processes import born

BEAT_S = 2.0


@dataclass(frozen=True)
class Beat:
    """A sign of life. `number` counts beats; `born` tells the process from a later one."""

    host: str
    node: str  # Ray's id of the machine
    pid: int
    born: int
    number: int
    idle_s: float  # since work last got on
    longest_s: float  # between two pieces of work so far, without the loading of models


class _Work:
    """The work of this process, which runs one unit at a time."""

    def __init__(self) -> None:
        self.pieces = 0
        self.last = time.monotonic()
        self.longest = 0.0
        self.loading = 0  # how many `loading` blocks are open, one inside the other


_work = _Work()


def advance() -> None:
    """Note that a piece of work is done."""
    now = time.monotonic()
    _work.pieces += 1
    if not _work.loading:
        _work.longest = max(_work.longest, now - _work.last)
    _work.last = now


@contextmanager
def loading() -> Iterator[None]:
    """While the body loads models, its pieces are signs of life, but none counts as the longest."""
    advance()
    work = _work  # kept, since a `Pulse` that begins in the body replaces it
    work.loading += 1
    try:
        yield
    finally:
        advance()
        work.loading -= 1


def pieces() -> int:
    """How many pieces of work this process has done."""
    return _work.pieces


class Pulse:
    """Writes beats into `path` until `stop`, which removes it. Work done before does not count."""

    def __init__(self, path: Path, node: str = ""):
        global _work
        _work = _Work()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._node, self._number = path, node, 0
        self._ended = threading.Event()
        self._beat()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="pulse")
        self._thread.start()

    def stop(self) -> None:
        """End the beats and remove their file, so that the watchdog expects no more of them."""
        self._ended.set()
        self._thread.join()
        self._path.unlink(missing_ok=True)

    def _follow(self) -> None:
        while not self._ended.wait(BEAT_S):
            self._beat()

    def _beat(self) -> None:
        self._number += 1
        beat = Beat(
            host=socket.gethostname(),
            node=self._node,
            pid=os.getpid(),
            born=born(os.getpid()) or 0,
            number=self._number,
            idle_s=time.monotonic() - _work.last,
            longest_s=_work.longest,
        )
        scratch = self._path.with_name(f".{self._path.name}.tmp")
        # A file system may be away for a moment. The work itself will fail if it stays away.
        with suppress(OSError):
            scratch.write_text(json.dumps(asdict(beat)), encoding="utf-8")
            os.replace(scratch, self._path)


def pulse_path(runs: Path, unit_id: str) -> Path:
    """The file of the beats of a unit's process."""
    return runs / ".locks" / f"{unit_id}.pulse"


def read_beat(path: Path) -> Beat | None:
    """The last beat; None if there is none that can be read."""
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or set(raw) != {field.name for field in fields(Beat)}:
        return None
    return Beat(**raw)
