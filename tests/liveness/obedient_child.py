"""A child process that does as it is told. Its first call is a prefix for what it answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from orchestrator.errors import UserError
from orchestrator.liveness import heartbeat
from orchestrator.liveness.children import Parent, serve


class OwnError(Exception):
    """An error that no pickle carries: it is made from more than its message."""

    def __init__(self, one: str, other: str):
        super().__init__(one + other)
        self.lock = threading.Lock()


def open_child(prefix: str, parent: Parent) -> Callable[[Any], Any]:
    if prefix == "":
        raise UserError("prefix: '': expected a word", "prefix")

    def answer(call: tuple[str, Any]) -> Any:
        match call:
            case ("say", words):
                for word in words:
                    parent.send(word)
                return prefix + " ".join(words)
            case ("raise", "picklable"):
                raise KeyError("nothing here")
            case ("raise", _):
                raise OwnError("one", "other")
            case ("die", words):
                print(words, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            case ("work", seconds):
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    heartbeat.advance()
                    time.sleep(0.05)
            case ("sleep", seconds):
                time.sleep(seconds)
            case ("spawn", _):
                return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid
        return None

    return answer


if __name__ == "__main__":
    serve(open_child)
