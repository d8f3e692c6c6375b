"""Ends the processes of a sweep when a server of its cluster is gone.

The driver sees the processes of a private cluster. In any other cluster, the driver and the sweep's
processes on all nodes ask the head's server: Ray would end those processes only after a minute, and
they would hold their units until then.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from orchestrator.errors import ClusterDied

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
