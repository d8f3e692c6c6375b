"""Signs of life of a process, and the watchdog of the driver, which ends processes without them.

Work calls `advance` after each small piece: a round of decoding, a micro-batch, an answer graded,
some rows read. Every BEAT_S seconds a thread of the process writes how long ago the last piece was
done. A reader can thus tell a process that is stopped (no beats) from one that hangs (beats, but no
work) and from one that is merely slow. Models are loaded within `loading`: that takes minutes, and
does not show how long a piece of work may take.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from orchestrator.liveness.processes import born, is_stopped

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
    """Writes beats into `path` until `stop`, which removes it, and calls `beside` after each.

    Work done before does not count.
    """

    def __init__(self, path: Path, node: str = "", beside: Callable[[], None] = lambda: None):
        global _work
        _work = _Work()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._node, self._number, self._beside = path, node, 0, beside
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
            with suppress(Exception):  # the beats go on, whatever happens beside them
                self._beside()

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


# --- the watchdog: the driver ends frozen processes, and Tune starts them again ---
#
# A process is frozen if a signal has stopped it, if its beats have ceased, or if it beats but its
# work has made no progress for far longer than its longest piece so far. Stops and silence are
# counted in looks of the watchdog: when the machine or the file system stalls, the looks stall too,
# and no healthy process is ended. `sweep.tuner` opens the watchdog, and ends the process for it.

STOPPED_LOOKS = 5  # 10 s: a debugger or an administrator may stop a process for a moment
SILENT_LOOKS = 45  # 90 s: a thread of a busy process may get no turn for many seconds
# A process hangs if its work makes no progress for HANGS_AFTER_S, and for HANGS_FACTOR times its
# longest piece of work so far.
HANGS_AFTER_S = 900.0
HANGS_FACTOR = 20
LOADS_FACTOR = 1.5  # times the limit on an engine's start, which makes no progress to be seen

End = Callable[[str, Beat, str], None]


@dataclass
class _Watched:
    """The last beat seen of a process, and for how many looks it was silent or stopped."""

    beat: Beat
    silent: int = 0
    stopped: int = 0
    ended: bool = False


class Watchdog:
    """Watches the running work, `names()`.

    `end(name, beat, reason)` kills the process of a beat, on whatever machine it runs. A process
    may be silent for the start of an engine, which has a limit of `start_s`.
    """

    def __init__(
        self, runs: Path, names: Callable[[], Iterable[str]], end: End, start_s: float = 0.0
    ):
        self._runs, self._names, self._end = runs, names, end
        self._hangs_after_s = max(HANGS_AFTER_S, LOADS_FACTOR * start_s)
        self._watched: dict[str, _Watched] = {}

    def look(self) -> list[str]:
        """Look once at all running work; return the names whose process was ended."""
        frozen = []
        for name in self._names():
            reason = self._reason(name)
            if reason is not None:
                watched = self._watched[name]
                watched.ended = True
                self._end(name, watched.beat, reason)
                frozen.append(name)
        return frozen

    def _reason(self, name: str) -> str | None:
        """The reason to end the process of this work; None if it may go on."""
        beat = read_beat(pulse_path(self._runs, name))
        if beat is None:
            self._watched.pop(name, None)
            return None
        watched = self._watched.get(name)
        if watched is None or (watched.beat.pid, watched.beat.born) != (beat.pid, beat.born):
            self._watched[name] = _Watched(beat)
            return None
        here = beat.host == socket.gethostname()
        # Tune notices by itself that a process is gone.
        if watched.ended or (here and born(beat.pid) != beat.born):
            return None
        watched.silent = watched.silent + 1 if watched.beat.number == beat.number else 0
        watched.stopped = watched.stopped + 1 if here and is_stopped(beat.pid) else 0
        watched.beat = beat
        if watched.stopped >= STOPPED_LOOKS:
            return f"has been stopped for {STOPPED_LOOKS * BEAT_S:.0f} s"
        if watched.silent >= SILENT_LOOKS:
            return f"has given no sign of life for {SILENT_LOOKS * BEAT_S:.0f} s"
        if beat.idle_s > max(self._hangs_after_s, HANGS_FACTOR * beat.longest_s):
            return f"has done nothing for {beat.idle_s:.0f} s"
        return None


@contextmanager
def watching(watchdog: Watchdog) -> Iterator[None]:
    """Look every BEAT_S while the body runs."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(BEAT_S):
            # The file system may be away for a moment; the next look is soon.
            with suppress(OSError):
                watchdog.look()

    thread = threading.Thread(target=follow, daemon=True, name="watchdog")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(BEAT_S)


def end_process(pid: int, birth: int) -> None:
    """SIGKILL a process of this machine, unless it has ended and another process has its id."""
    if born(pid) == birth:
        os.kill(pid, signal.SIGKILL)
