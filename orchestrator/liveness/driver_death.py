"""Ends a sweep's private Ray cluster when the driver is gone, from a process beside the driver.

Ray 2.60 ends the processes of a killed driver only after a minute, in which trials go on and keep
their leases: 61 s passed until the last one ended, against less than a second with this process.
The end of its standard input, which the driver holds, tells it at once that the driver is gone. It
then kills the Ray processes that name the cluster's scratch folder on their command line, their
descendants, and the processes that the driver itself started, and nothing else. Last it removes the
scratch folders.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.liveness.processes import Process, descendants, processes, remove_abandoned

MODULE = "orchestrator.liveness.driver_death"
POLL_S = 0.5
REMEMBER_EVERY = 2  # polls; a process whose parent died first is known only if it was listed before
ENDED_WITHIN_S = 30.0
OVER = b"over"  # the last word of a driver whose sweep has ended


@contextmanager
def ends_with_driver(scratch: Path) -> Iterator[None]:
    """Let no process of the cluster in `scratch` outlive this process, however this one ends."""
    if not Path("/proc/self/stat").exists():
        yield  # not Linux: Ctrl-C and SIGTERM clean up, SIGKILL does not
        return
    command = [sys.executable, "-m", MODULE, str(os.getpid()), str(scratch)]
    quiet = subprocess.DEVNULL
    # A session of its own: Ctrl-C in the terminal is for the sweep.
    beside = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
    )
    try:
        yield
    finally:
        beside.communicate(OVER)


def main(driver: int, scratch: Path) -> None:
    """Wait until `driver` ends or writes OVER to standard input, then end the cluster."""
    cluster: set[Process] = set()
    everything: set[Process] = set()
    polls = 0
    while os.getppid() == driver and not select.select([sys.stdin], [], [], POLL_S)[0]:
        polls += 1
        if polls % REMEMBER_EVERY == 1:
            alive = processes()
            cluster |= members(alive, scratch, None)
            everything |= members(alive, scratch, driver)
    # A driver that wrote OVER goes on, and keeps its processes outside of the cluster. The kernel
    # closes the files of a killed driver before it gives this process another parent: for a moment
    # only the end of standard input without OVER shows that the driver is gone.
    gone = os.getppid() != driver or sys.stdin.buffer.read(len(OVER)) != OVER
    known = everything if gone else cluster
    deadline = time.monotonic() + ENDED_WITHIN_S
    while time.monotonic() < deadline:
        alive = processes()
        left = remaining(known, alive, scratch)
        known |= left
        for process in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)
        if not left:
            if not gone:  # the driver removes its folders itself
                break
            remove_abandoned(scratch.parent)
            if not scratch.exists():
                break
        time.sleep(0.1)


def remaining(known: set[Process], alive: dict[int, Process], scratch: Path) -> set[Process]:
    """The rest of a cluster: its members, and living processes of `known` whatever their parent."""
    return (known & set(alive.values())) | members(alive, scratch, None)


def members(alive: dict[int, Process], scratch: Path, driver: int | None) -> set[Process]:
    """The processes of a cluster: Ray's that name its folder, and all descendants.

    With a `driver`, the descendants of that process, too.
    """
    others = dict(alive)
    others.pop(os.getpid(), None)
    named: set[Process] = set()
    ancestors = set() if driver is None else {driver}
    for process in others.values():
        if _names(process.pid, scratch):
            named.add(process)
            ancestors.add(process.pid)
    return named | descendants(ancestors, others.values())


def _names(pid: int, scratch: Path) -> bool:
    """Whether the command line of a process is one of Ray's and names the folder."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return f"{scratch}/" in line + "/" and "/ray/" in line


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
