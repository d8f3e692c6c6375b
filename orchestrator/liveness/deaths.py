"""Ends the processes of a sweep when a server of its cluster, or its driver, is gone.

The driver sees the processes of a private cluster. In any other cluster, the driver and the sweep's
processes on all nodes ask the head's server: Ray would end those processes only after a minute, and
they would hold their units until then.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from orchestrator.errors import ClusterDied
from orchestrator.liveness.processes import Process, descendants, processes, remove_abandoned

LOOK_S = 1.0  # between two looks
UNWINDS_WITHIN_S = 8.0  # time for a driver to unwind after the signal; then it is ended at once
SILENT_S = 20.0  # a head may be busy, or be started again by its supervisor
OWN_SILENT_S = 120.0  # for a head on this machine, which may be overloaded
SERVERS = ("gcs_server", "raylet")
ANSWERS_WITHIN_S = 5.0
# Opens an HTTP/2 connection, as gRPC does: a fixed text and an empty frame of settings. The server
# answers with its settings.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SETTINGS = 4  # the type of such a frame


class Servers(Protocol):
    """Servers that a sweep cannot do without."""

    def lost(self) -> str | None:
        """A sentence about servers that are gone for good; None while all live."""
        ...

    def missed(self) -> str | None:
        """Like `lost`, but also reports servers that may recover. Called after a failure."""
        ...


class OwnServers:
    """The servers of a private cluster; Ray's `node` reports their processes.

    A server that a signal has stopped or asked to end may still exist without answering, while its
    callers wait for ever. So `lost` also asks the first server, at `address`.
    """

    def __init__(self, node: Any, address: str):
        self._node = node
        self._head = Head(address, OWN_SILENT_S)

    def lost(self) -> str | None:
        return self.missed() or ("Ray's gcs_server does not answer" if self._head.lost() else None)

    def missed(self) -> str | None:
        dead = sorted({kind for kind, _ in self._node.dead_processes() if kind in SERVERS})
        return f"Ray's {' and '.join(dead)} died" if dead else None


class Head:
    """The server of a cluster's head; it counts as gone after `silent_s` without an answer."""

    def __init__(self, address: str, silent_s: float = SILENT_S):
        self._address, self._silent_s = address, silent_s
        self._answered = time.monotonic()
        self._lost = False

    def lost(self) -> str | None:
        if self._answers():
            self._answered = time.monotonic()
        self._lost = self._lost or time.monotonic() - self._answered > self._silent_s
        silent = f"has not answered for {self._silent_s:.0f} s"
        return f"the head of the cluster at {self._address} {silent}" if self._lost else None

    def missed(self) -> str | None:
        if self._answers():
            return None
        return f"the head of the cluster at {self._address} does not answer"

    def _answers(self) -> bool:
        host, _, port = self._address.rpartition(":")
        with suppress(OSError):
            return answers(host, int(port))
        return False


@contextmanager
def watched(servers: Servers) -> Iterator[None]:
    """Raise ClusterDied within seconds of the loss of a server of the cluster."""
    ended = threading.Event()
    lost: list[str] = []

    def look() -> None:
        while not ended.wait(LOOK_S):
            if loss := servers.lost():
                lost.append(loss)
                if ended.is_set():
                    return
                signal.pthread_kill(main, signal.SIGTERM)
                if not ended.wait(UNWINDS_WITHIN_S):
                    # The driver waits for an answer that will not come.
                    print(f"\ntrb: {_story(loss)}; run the same command again", file=sys.stderr)
                    exit_at_once()
                return

    def hush(unraisable: Any) -> None:
        """Silence Ray's objects, which raise when they are collected after their server is gone."""
        if not (
            getattr(unraisable.object, "__module__", "").startswith("ray")
            and (lost or servers.missed())
        ):
            sys.__unraisablehook__(unraisable)

    main = threading.get_ident()
    sys.unraisablehook = hush
    threading.Thread(target=look, daemon=True, name="cluster").start()
    try:
        yield
    except BaseException:
        ended.set()
        loss = lost[0] if lost else servers.missed()
        if loss:
            raise ClusterDied(_story(loss)) from None
        raise
    finally:
        ended.set()


def end_without(servers: Servers, end: Callable[[], None] | None = None) -> None:
    """End this process once a server is gone, even if it is busy: it could not report its work."""

    def look() -> None:
        while not servers.lost():
            time.sleep(LOOK_S)
        (end or exit_at_once)()

    threading.Thread(target=look, daemon=True, name="head").start()


def exit_at_once() -> None:
    """End this process without its libraries' handlers, which would wait for the lost servers."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _story(loss: str) -> str:
    return f"{loss}; what was committed is safe"


def answers(host: str, port: int) -> bool:
    """Whether the server at this port speaks gRPC, as Ray's do. OSError if nothing listens.

    Ray's own check is private, and takes 40 s where nothing answers.
    """
    with socket.create_connection((host, port), timeout=ANSWERS_WITHIN_S) as connection:
        if os.environ.get("RAY_USE_TLS"):
            return True
        try:
            connection.sendall(HELLO)
            # The head of a frame has nine bytes, the fourth of which is its type.
            head = connection.makefile("rb").read(9)
        except OSError:
            return False
    return len(head) == 9 and head[3] == SETTINGS


# --- the driver's death: a process beside it ends its private cluster ---
#
# Ray 2.60 ends the processes of a killed driver only after a minute, in which trials go on and keep
# their leases: 61 s passed until the last one ended, against less than a second with this process.
# The end of its standard input, which the driver holds, tells it at once that the driver is gone. It
# then kills the Ray processes that name the cluster's scratch folder on their command line, their
# descendants, and the processes that the driver itself started, and nothing else. Last it removes the
# scratch folders.


MODULE = "orchestrator.liveness.deaths"
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
