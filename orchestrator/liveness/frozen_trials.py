"""The driver ends frozen processes of trials and evaluators, and Tune starts them again.

A process is frozen if a signal has stopped it, if its beats have ceased, or if it beats but its
work has made no progress for far longer than its longest piece so far. Stops and silence are
counted in looks of the watchdog: when the machine or the file system stalls, the looks stall too,
and no healthy process is ended. `sweep.tuner` opens the watchdog, and ends the process for it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname

from orchestrator.liveness.processes import born, is_stopped
from orchestrator.liveness.pulse import BEAT_S, Beat, pulse_path, read_beat

LOOK_S = BEAT_S
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
        here = beat.host == gethostname()
        # Tune notices by itself that a process is gone.
        if watched.ended or (here and born(beat.pid) != beat.born):
            return None
        watched.silent = watched.silent + 1 if watched.beat.number == beat.number else 0
        watched.stopped = watched.stopped + 1 if here and is_stopped(beat.pid) else 0
        watched.beat = beat
        if watched.stopped >= STOPPED_LOOKS:
            return f"has been stopped for {STOPPED_LOOKS * LOOK_S:.0f} s"
        if watched.silent >= SILENT_LOOKS:
            return f"has given no sign of life for {SILENT_LOOKS * LOOK_S:.0f} s"
        if beat.idle_s > max(self._hangs_after_s, HANGS_FACTOR * beat.longest_s):
            return f"has done nothing for {beat.idle_s:.0f} s"
        return None


@contextmanager
def watching(watchdog: Watchdog) -> Iterator[None]:
    """Look every LOOK_S while the body runs."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(LOOK_S):
            # The file system may be away for a moment; the next look is soon.
            with suppress(OSError):
                watchdog.look()

    thread = threading.Thread(target=follow, daemon=True, name="watchdog")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LOOK_S)


def end_process(pid: int, birth: int) -> None:
    """SIGKILL a process of this machine, unless it has ended and another process has its id."""
    if born(pid) == birth:
        os.kill(pid, signal.SIGKILL)
