"""The grading process: decides whether an extracted answer equals a gold answer.

A child of the process that grades (`liveness.children`). Its first call loads the algebra, which
takes seconds. Each later call is `{"gold": {...}, "answer": str, "deadline_s": float, "cpu_s":
float | None}`. Its result is whether the answer is correct, or None without a verdict.

The process judges nothing itself. It forks a copy of itself, the judge, which answers one call
after the other. Symbolic algebra may spend minutes in one call into C, which no Python timer
interrupts; a kill always works, and the next fork has everything loaded. A hanging answer therefore
costs its deadline and no start of a process.
"""

from __future__ import annotations

import gc
import math
import os
import pickle
import resource
import signal
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any, NoReturn

from orchestrator.grading.gold import MATH, Gold, judge_of
from orchestrator.grading.judge import judge
from orchestrator.liveness.children import Parent, serve
from orchestrator.start_up import quick_imports

# Address space in bytes: a tower of powers exhausts the machine's memory well before any deadline.
# At the limit Python raises MemoryError, which counts as a wrong answer like any other exception,
# or C code aborts, which ends the judge.
_MEMORY_LIMIT = 2 << 30


def _open(call: None, parent: Parent) -> Callable[[dict[str, Any]], bool | None]:
    """Limit the memory, and load the algebra."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MEMORY_LIMIT if hard == resource.RLIM_INFINITY else min(_MEMORY_LIMIT, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    # Judging one answer imports everything that is imported at first use; no deadline runs yet.
    with quick_imports():
        judge(Gold("$x^2$"), "x+x")
    gc.freeze()  # no collection of the judge's touches, and so copies, what is loaded
    # The fork takes along one thread, this one; the other only looks whether the parent lives.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    return _Judging(parent).verdict


class _Judging:
    """The forked judge, replaced after an answer without a verdict."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._pid = 0
        self._connection: Connection | None = None

    def verdict(self, request: dict[str, Any]) -> bool | None:
        """The judge's verdict; None if it gave none in time, or died."""
        if self._connection is None:
            self._fork()
        assert self._connection is not None
        reply: bool | Exception | None = None
        try:
            self._connection.send(request)
            if self._connection.poll(request["deadline_s"]):
                reply = self._connection.recv()
        except (EOFError, OSError):  # it died of this answer
            pass
        if not isinstance(reply, bool):
            self._end()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _fork(self) -> None:
        here, there = Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            here.close()
            self._parent.leave()
            _judge_calls(there)
        there.close()
        self._connection = here

    def _end(self) -> None:
        assert self._connection is not None
        self._connection.close()
        self._connection = None
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _judge_calls(connection: Connection) -> NoReturn:
    """Answer calls, in the forked process, until its parent is gone."""
    while True:
        try:
            request = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        try:
            reply = _is_correct(request)
        except Exception as error:
            reply = error
        try:
            message = pickle.dumps(reply)
            pickle.loads(message)  # noqa: S301 - made in the line above
        except Exception:
            message = pickle.dumps(RuntimeError(repr(reply)))
        connection.send_bytes(message)


def _is_correct(request: dict[str, Any]) -> bool:
    """Judge one request. An answer that breaks the algebra is wrong.

    An exception of a user's own judge fails the call, and the answer counts as timed out: a language
    model's server that is down says nothing about an answer.
    """
    # The default actions of SIGPROF and SIGALRM kill the process even inside C code. SIGPROF comes
    # after a time of its own on a processor, which other processes do not shorten. SIGALRM comes
    # too late to forestall the parent, and ends this process if all its parents are gone.
    signal.setitimer(signal.ITIMER_PROF, request["cpu_s"] or 0)
    signal.alarm(math.ceil(request["deadline_s"]) + 5)
    try:
        gold = Gold(**request["gold"])
        return bool(judge_of(gold.judge)(gold, request["answer"]))
    except Exception:
        if request["gold"].get("judge", MATH) != MATH:
            raise
        return False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)


if __name__ == "__main__":
    serve(_open)
