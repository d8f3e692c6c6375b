"""The parent's end of a grading process: started when an answer needs it, killed at a deadline,
then replaced.

Three things bound the cost of an answer. The parent keeps the deadline: symbolic algebra may spend
minutes in one call into C, which no Python timer interrupts, and a kill always works. The worker
limits its own memory (`worker`), since an answer can exhaust the machine before its deadline. A
worker that died or was killed is replaced before the next answer, which therefore does not pay for
the previous one.

Starting takes seconds, because of sympy. The worker sends `{"ready": true}` when its imports are
done, and the deadline of the first answer starts only then.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from orchestrator.records import pulse

# Importing sympy on a loaded machine may take many seconds.
STARTUP_DEADLINE_S = 120.0

_WORKER_MODULE = "orchestrator.grading.worker"
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class _Died(Exception):
    """The worker's pipe closed: the process ended by itself, or something killed it."""


class _Worker:
    """One grading process and its pipes. Not thread-safe."""

    def __init__(self) -> None:
        """Start the process and wait until it is ready. Raises RuntimeError if it doesn't come up."""
        env = dict(os.environ)
        env["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(_PACKAGE_ROOT), env.get("PYTHONPATH")])
        )
        # sympy orders some sets by hash; a fixed seed makes every grade repeatable.
        env["PYTHONHASHSEED"] = "0"
        self._process = subprocess.Popen(
            [sys.executable, "-m", _WORKER_MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # math_verify and antlr warn about unparsable answers, which are a model's everyday
            # output.
            stderr=subprocess.DEVNULL,
            # `-m` puts the current folder first on the import path: a stray sympy.py there must not
            # be imported.
            cwd=_PACKAGE_ROOT,
            env=env,
        )
        self._buffer = b""  # bytes read from the pipe after the last complete line
        try:
            handshake = self._read_line(STARTUP_DEADLINE_S)
        except _Died:
            handshake = {"error": "it exited at once"}
        except BaseException:
            self.kill()
            raise
        if handshake is None or not handshake.get("ready"):
            self.kill()
            why = (
                f"no sign of life within {STARTUP_DEADLINE_S:g} s"
                if handshake is None
                else handshake.get("error")
            )
            raise RuntimeError(
                f"the grading worker did not start: {why}; try: {sys.executable} -m {_WORKER_MODULE}"
            )

    def ask(self, request: dict[str, Any], deadline_s: float) -> bool | None:
        """The worker's verdict; None if none came in time. Raises _Died if the process ended."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError as error:
            raise _Died from error
        reply = self._read_line(deadline_s)
        return None if reply is None else bool(reply["correct"])

    def _read_line(self, deadline_s: float) -> dict[str, Any] | None:
        """The next JSON line; None once the deadline has passed. Raises _Died at the end of the
        stream.
        """
        stdout = self._process.stdout
        assert stdout is not None
        end = time.monotonic() + deadline_s
        poller = select.poll()
        poller.register(stdout.fileno(), select.POLLIN)
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0:
                return None
            if not poller.poll(max(1, int(left * 1000))):
                continue
            chunk = os.read(stdout.fileno(), 65536)
            if not chunk:
                raise _Died
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process at once and release its pipes."""
        self._process.kill()
        self._release()

    def stop(self) -> None:
        """Close stdin, which ends an idle worker, and kill it if it's still there 5 s later."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=5.0)
        except (subprocess.TimeoutExpired, OSError):
            self._process.kill()
        self._release()

    def _release(self) -> None:
        """Close the pipes and reap the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:
                pass
        self._process.wait()


class Slot:
    """A place for one grading process at a time, which outlives its processes. Not thread-safe."""

    def __init__(self) -> None:
        """Make an empty place, which the first request fills."""
        self.worker: _Worker | None = None

    def ask(self, request: dict[str, Any], deadline_s: float) -> bool | None:
        """The process's verdict; None if it gave none in time or died, and then the process is
        gone.

        Raises RuntimeError if no process can be started.
        """
        if self.worker is not None and not self.worker.alive():
            # It died between two answers, so this answer is not to blame.
            self._drop()
        if self.worker is None:
            self.worker = _Worker()
        try:
            verdict = self.worker.ask(request, deadline_s)
        except _Died:
            verdict = None
        except BaseException:
            # An interrupted exchange leaves a reply in the pipe, which would pass for the next
            # answer's.
            self._drop()
            raise
        if verdict is None:
            self._drop()
        pulse.advance()
        return verdict

    def close(self) -> None:
        """End the process. A later request starts a fresh one."""
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.stop()

    def _drop(self) -> None:
        """Kill the process, if any."""
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.kill()
