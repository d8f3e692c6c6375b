"""The process of one rank: `python -m orchestrator.engines.verl.member DESCRIPTOR` serves calls.

It ends as soon as the other end of the connection is gone, even during a call.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from orchestrator.engines.verl.messages import Progress, RankAnswer, RankFailure, receive, send
from orchestrator.records import pulse
from orchestrator.start_up import quick_imports

PROGRESS_EVERY_S = 1.0


class Member:
    """A rank and its connection; a lock serialises the two threads that write to it."""

    def __init__(self, connection: Connection):
        self._connection, self._lock = connection, threading.Lock()
        self._messages: queue.Queue[Any] = queue.Queue()
        for work in (self._listen, self._tell_progress):
            threading.Thread(target=work, daemon=True).start()

    def run(self) -> None:
        """Make the rank that the first message describes, then run the calls of later messages."""
        message = self._messages.get()
        with quick_imports():
            from orchestrator.engines.verl.rank import Rank

        rank = self._answer(Rank, *message, stays=True)
        while True:
            method, arguments = self._messages.get()
            self._answer(method, rank, *arguments)

    def _answer(self, method: Any, *arguments: Any, stays: bool = False) -> Any:
        """Make a call and send its result or error; a value that `stays` is not sent."""
        try:
            value = method(*arguments)
        except Exception as error:
            self._say(_failure(error))
            return None
        self._say(RankAnswer(None if stays else value))
        return value

    def _say(self, message: Any) -> None:
        with self._lock:
            send(self._connection, message)

    def _listen(self) -> None:
        while True:
            try:
                self._messages.put(receive(self._connection))
            except (EOFError, OSError):
                os._exit(1)  # even from a collective that would never end

    def _tell_progress(self) -> None:
        done = pulse.pieces()
        while True:
            time.sleep(PROGRESS_EVERY_S)
            if pulse.pieces() != done:
                done = pulse.pieces()
                self._say(Progress())


def _failure(error: Exception) -> RankFailure:
    """The error itself, or its text if it cannot be pickled."""
    story = traceback.format_exc().rstrip()
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made in this line
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return RankFailure(error, story)


if __name__ == "__main__":
    Member(Connection(int(sys.argv[1]))).run()
