"""The view in a browser: on loopback alone, below the token alone, and without the internet."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, browser
from tests.fake_runs import QUICKSTART
from tests.sweeps import ROOT, environment
from tests.view.sweeps import ONLY, small_sweep

COMMAND = [sys.executable, "-c", "from orchestrator.cli import main; main()", "view"]
PATIENCE_S = 60.0
# Of the terminal in the page, the second on a slow machine, and of a browser without a GPU.
OWN_WORDS = ("console.log", "task queue exceeded allotted deadline", "WebGL")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a view that is served while the tests of this file run."""
    runs = tmp_path_factory.mktemp("served") / "runs"
    small_sweep(runs)
    command = [*COMMAND, str(QUICKSTART), *ONLY, "evaluation.rescore=false", "--runs", str(runs)]
    with subprocess.Popen(
        [*command, "--serve"], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{32}/$", line.strip())
            assert found, line
            yield found[0]
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(PATIENCE_S) == 0


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with contextlib.closing(error):
            return error.code


def test_nothing_is_found_without_the_token(address: str) -> None:
    origin, token = address.rstrip("/").rsplit("/", 1)
    assert status(address) == 200
    wrong = token[:-1] + ("a" if token[-1] != "a" else "b")
    for path in ("", "ws", "static/js/textual.js", f"{wrong}/", f"{wrong}/ws", token[:-1]):
        assert status(f"{origin}/{path}") == 404, path


def test_the_port_is_open_on_loopback_alone(address: str) -> None:
    port = int(address.split(":")[2].split("/")[0])
    listening = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A" and local.endswith(f":{port:04X}"):
                listening.add(local.split(":")[0])
    assert listening == {"0100007F"}


def test_a_browser_shows_the_view_and_sends_keys(address: str, tmp_path: Path) -> None:
    with browser(tmp_path) as page:
        page.load(address, 1280)
        wait(page, "document.body.classList.contains('-first-byte')")
        wait(page, "document.querySelector('.xterm-text-layer').height > 400")
        page.evaluate("document.querySelector('textarea').focus()")
        for kind in ("keyDown", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key="q", text="q")
        wait(page, "document.body.classList.contains('-closed')")
        assert all(url.startswith(address) for url in page.requests if url.startswith("http"))
        problems = [text for text in page.problems if not any(word in text for word in OWN_WORDS)]
        assert problems == []


def wait(page: Browser, condition: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        time.sleep(0.1)
