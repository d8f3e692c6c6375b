"""A page in headless Chromium, driven through its DevTools pipe: nothing listens, nothing but the
browser is needed.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--remote-debugging-pipe",
        "--disable-gpu",
        "--disable-dev-shm-usage",
    ),
    *(
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ),
)
ABOVE_REDIRECTED = (
    10  # file descriptors 3 and 4 are the pipe, so its ends must not lie there before
)


class Browser:
    """One tab. `problems` collects console errors, exceptions and failed or refused requests;
    `requests` their URLs.
    """

    def __init__(self, commands: IO[bytes], answers: IO[bytes]):
        self._commands, self._answers = commands, answers
        self._last = 0
        self._session: dict[str, str] = {}
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of one DevTools command."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters, **self._session}
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, page: Path, width: int, height: int = 900) -> None:
        """Load the page of a file, see `load`."""
        self.load(page.as_uri(), width, height)

    def load(self, address: str, width: int, height: int = 900) -> None:
        """Load a page into a window of that many CSS pixels, up to the end of its load event."""
        narrow = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=narrow,
        )
        self.call("Page.navigate", url=address)
        while self._read().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def _read(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser is gone"
            data += byte
        message = json.loads(data)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, told: dict[str, Any]) -> None:
        match event:
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.problems.append(told["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.problems.append(told["exceptionDetails"]["text"])
            case "Runtime.consoleAPICalled":
                said = " ".join(str(part.get("value", "")) for part in told["args"])
                self.problems.append(f"console.{told['type']}: {said}")
            case "Network.loadingFailed":
                self.problems.append(told["errorText"])
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile in the folder `profile`; skips without one, unless
    TRB_BROWSER is set.
    """
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        if "TRB_BROWSER" in os.environ:
            pytest.fail("no Chromium found; docker/lock/debian.txt names its package")
        pytest.skip("no Chromium found; docker/lock/debian.txt names its package")
    (inner_read, write), (read, inner_write) = _pipe(), _pipe()
    script = f'exec "$@" 3<&{inner_read} 4>&{inner_write}'
    command = ["bash", "-c", script, "browser", program, *FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        command,
        pass_fds=(inner_read, inner_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(inner_read)
    os.close(inner_write)
    try:
        with os.fdopen(write, "wb") as commands, os.fdopen(read, "rb") as answers:
            yield Browser(commands, answers)
    finally:  # the browser ends with its pipe
        process.wait(timeout=60)


def _pipe() -> tuple[int, int]:
    """(read, write), neither of them where the browser's own ends will be."""
    pair = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, ABOVE_REDIRECTED) for end in pair)
    for end in pair:
        os.close(end)
    return moved[0], moved[1]
