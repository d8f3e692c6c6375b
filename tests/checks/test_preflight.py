"""What is refused before Ray starts: folders that cannot be written to, full disks, addresses where
no Ray is.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.checks import preflight
from orchestrator.checks.preflight import check_address, runs_folder
from orchestrator.errors import UserError
from orchestrator.liveness.deaths import HELLO


def test_a_folder_that_can_be_written_to_is_left_as_it_was(tmp_path: Path) -> None:
    runs_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []
    runs_folder(tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for runs in (Path("/proc/trb"), Path("/sys/trb/runs"), tmp_path / "file" / "runs"):
        with pytest.raises(
            UserError, match=f"^--runs: '.*{runs.name}': expected a folder that can be written to"
        ):
            runs_folder(runs)


def test_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"expected 1099511627776 MiB free on its disk, which has \d+$"
    ):
        runs_folder(tmp_path, least_free=2**60)
    assert list(tmp_path.iterdir()) == []


class Server:
    """Answers everyone who connects with `answer`, after `reads` bytes."""

    def __init__(self, answer: bytes, reads: int):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._answer, self._reads = answer, reads
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(self._reads)
                connection.sendall(self._answer)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def serve() -> Iterator[object]:
    servers: list[Server] = []

    def start(answer: bytes, reads: int = len(HELLO)) -> str:
        servers.append(Server(answer, reads))
        return servers[-1].address

    yield start
    for server in servers:
        server.close()


def test_a_server_that_speaks_grpc(serve) -> None:
    address = serve(GRPC)
    assert check_address(address) == address


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"]
)
def test_a_server_that_is_not_ray(answer: bytes, serve) -> None:
    address = serve(answer)
    with pytest.raises(
        UserError,
        match=f"^--address: '{address}': expected a Ray cluster; something else answers there$",
    ):
        check_address(address)


GRPC = bytes([0, 0, 6, 4, 0, 0, 0, 0, 0]) + b"\0" * 6


def free_port() -> int:
    """A port at which nothing listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return listener.getsockname()[1]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which Ray notes the last cluster; no raylet runs on this machine."""
    for name in ("RAY_ADDRESS", "RAY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(preflight, "_clusters_here", set)
    noted = tmp_path / "ray" / "ray_current_cluster"
    noted.parent.mkdir()
    return noted


def test_auto_is_resolved_as_ray_does(places: Path, monkeypatch: pytest.MonkeyPatch, serve) -> None:
    named, raylets, noted = serve(GRPC), serve(GRPC), serve(GRPC)
    places.write_text(noted + "\n")
    assert check_address("auto") == noted
    monkeypatch.setattr(preflight, "_clusters_here", lambda: {raylets})
    assert check_address("auto") == raylets
    monkeypatch.setattr(preflight, "_clusters_here", lambda: {raylets, named})
    assert check_address("auto") == noted
    monkeypatch.setenv("RAY_ADDRESS", named)
    assert check_address("auto") == named
    assert check_address(raylets) == raylets


def test_an_address_that_was_looked_up_names_its_origin(
    places: Path, monkeypatch: pytest.MonkeyPatch, serve
) -> None:
    def complaint() -> str:
        with pytest.raises(UserError) as raised:
            check_address("auto")
        return str(raised.value)

    gone = f"127.0.0.1:{free_port()}"
    assert f"no raylet runs here, and {places} names no cluster" in complaint()
    places.write_text(gone)
    assert complaint().startswith(f"--address auto: {places} names {gone}: nothing answers there")
    monkeypatch.setattr(preflight, "_clusters_here", lambda: {gone})
    assert complaint().startswith(f"--address auto: this machine's raylet names {gone}: nothing")
    for address, reason in {
        gone: "nothing answers there",
        f"ray://{gone}": "nothing answers there",
        "local": "expected HOST:PORT",
        "http://127.0.0.1:8265": "expected HOST:PORT",
        serve(b"SSH-2.0-OpenSSH_9.2\r\n"): "something else answers there than a Ray cluster",
    }.items():
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert complaint().startswith(f"--address auto: RAY_ADDRESS is {address}: {reason}")


def test_a_host_that_swallows_packets_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the system's look-up of a name nor a host behind a firewall keeps a time limit."""
    silent = threading.Event()
    monkeypatch.setattr(preflight, "answers", lambda *_: silent.wait())
    monkeypatch.setattr(preflight, "ANSWERS_WITHIN_S", 0.05)
    with pytest.raises(UserError, match=r"nothing answers there \(no answer in 0 s\)"):
        check_address("192.0.2.2:6379")
    silent.set()


def test_nobody_at_all() -> None:
    with pytest.raises(UserError, match="nothing answers there"):
        check_address(f"127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "http://host:8265",
        ":6379",
        "host:",
        "host:x",
        "host:99999",
        "host:" + "9" * 5000,
        "h:²",
    ],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UserError, match="auto, or HOST:PORT"):
        check_address(address)


@pytest.mark.parametrize("host", ["x" * 70, "a..b", "é" * 70])
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(UserError, match="nothing answers there"):
        check_address(f"{host}:6379")
