"""A process beside a sweep's private Ray cluster that ends the cluster when the sweep's own process
is gone.

Ray 2.60 ends its processes too when their driver was killed, but takes a minute for that, in which
trials go on and keep their leases (61 s until the last one, against less than a second with this
process). The kernel tells this process at once, since its parent changes. It kills Ray processes
that name the cluster's scratch folder on their command line, their descendants, and processes that
the driver itself had started; nothing else. Then it removes the scratch folders.
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

from orchestrator.liveness.processes import Process, descendants, processes
from orchestrator.sweep.scratch import remove_abandoned

POLL_S = 0.5
REMEMBER_EVERY = 2  # polls: processes whose parent dies first are known by then
ENDED_WITHIN_S = 30.0
OVER = b"over"  # what a driver says whose sweep has ended


@contextmanager
def guarded(scratch: Path) -> Iterator[None]:
    """Nothing of a cluster whose temporary folder is `scratch` outlives this process, however it
    ends.
    """
    if not Path(
        "/proc/self/stat"
    ).exists():  # not Linux: Ctrl-C and SIGTERM clean up, SIGKILL does not
        yield
        return
    command = [sys.executable, "-m", "orchestrator.sweep.guard", str(os.getpid()), str(scratch)]
    quiet = subprocess.DEVNULL
    # A session of its own: Ctrl-C in the terminal is for the sweep.
    guard = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
    )
    try:
        yield
    finally:
        guard.communicate(OVER)


def main(driver: int, scratch: Path) -> None:
    """Wait until `driver` is gone or says OVER on standard input; then end the cluster and clear
    up.
    """
    cluster: set[Process] = set()
    everything: set[Process] = set()
    polls = 0
    while os.getppid() == driver and not select.select([sys.stdin], [], [], POLL_S)[0]:
        polls += 1
        if polls % REMEMBER_EVERY == 1:
            alive = processes()
            cluster |= members(alive, scratch, None)
            everything |= members(alive, scratch, driver)
    # What else the driver has started is its own business while it lives. The kernel closes the
    # files of a killed driver before it names this process another parent: then the end of standard
    # input is all that shows it.
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
            if not gone:  # and removes its folders itself
                break
            remove_abandoned(scratch.parent)
            if not scratch.exists():
                break
        time.sleep(0.1)


def remaining(known: set[Process], alive: dict[int, Process], scratch: Path) -> set[Process]:
    """The rest of a cluster: processes of `known` that still live, under whatever parent, and its
    members.
    """
    return (known & set(alive.values())) | members(alive, scratch, None)


def members(alive: dict[int, Process], scratch: Path, driver: int | None) -> set[Process]:
    """The processes of a cluster: those of Ray that name its folder, and the descendants of these
    and of its driver.
    """
    others = {pid: process for pid, process in alive.items() if pid != os.getpid()}
    found = {pid for pid in others if _names(pid, scratch)}
    ancestors = found if driver is None else found | {driver}
    return {others[pid] for pid in found} | descendants(ancestors, others.values())


def _names(pid: int, scratch: Path) -> bool:
    """Whether a process is one of Ray's that was told to use the folder."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return f"{scratch}/" in line + "/" and "/ray/" in line


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
