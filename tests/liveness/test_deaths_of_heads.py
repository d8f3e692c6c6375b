"""When servers count as lost: a process that is gone at once, one that does not answer after its
time.
"""

from __future__ import annotations

import socket

import pytest

from orchestrator.liveness import deaths
from orchestrator.liveness.deaths import OwnServers


class Node:
    """What Ray's node says of its processes."""

    def __init__(self) -> None:
        self.dead: list[tuple[str, object]] = []

    def dead_processes(self) -> list[tuple[str, object]]:
        return self.dead


@pytest.fixture
def silent() -> str:
    """The address of a server that ends: nobody listens there any more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"127.0.0.1:{port}"


def test_a_server_that_does_not_answer_is_lost_after_its_time(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(deaths.time, "monotonic", lambda: now[0])
    servers = OwnServers(Node(), silent)
    now[0] += deaths.OWN_SILENT_S - 1
    assert servers.lost() is None
    now[0] += 2
    assert servers.lost() == "Ray's gcs_server does not answer"


def test_a_server_that_died_is_lost_at_once_and_an_agent_is_not_missed(silent: str) -> None:
    node = Node()
    servers = OwnServers(node, silent)
    node.dead = [("log_monitor", None)]
    assert servers.lost() is None
    node.dead = [("raylet", None), ("gcs_server", None)]
    assert servers.lost() == servers.missed() == "Ray's gcs_server and raylet died"
