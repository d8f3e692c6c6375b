r"""The one grader behind the training reward and behind every evaluation.

A generation counts when the content of its last ``\boxed{...}`` equals the benchmark's gold answer. The comparison
itself runs in a worker process (:mod:`orchestrator.tasks.grader_worker`), because symbolic algebra on a model's output
can hang or exhaust memory: a worker that misses its deadline is killed and replaced, and the answer is counted wrong.
This module imports neither torch nor ray nor math_verify.
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

# Part of every evaluation's identity: raise it with any change that can change a grade.
GRADER_VERSION = "1"

# Importing sympy on a loaded machine may take many seconds; it never counts against an answer.
STARTUP_DEADLINE_S = 120.0
# No gold is a tenth as long. Longer answers are derivations or degenerate repetition; parsing them is slow and useless.
MAX_ANSWER_CHARS = 2000

_WORKER_MODULE = "orchestrator.tasks.grader_worker"
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_BOX_TOKEN = re.compile(r"\\+(?:boxed|fbox)\s*\{|\\[\\{}]|[{}]")
_NUMERAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)", re.ASCII)
_MAX_NUMERAL_CHARS = 1000


@dataclass(frozen=True)
class Gold:
    """What is right, as the benchmark publishes it.

    ``multiple``: ``answer`` holds several answers, comma-separated, in free order. ``unit``: a unit the benchmark
    states apart from the answer; a prediction may carry it. ``tolerance``: allowed absolute difference.
    Raises ValueError on a field of the wrong type or a tolerance that is not a finite number >= 0.
    """

    answer: str
    multiple: bool = False
    unit: str | None = None
    tolerance: float | None = None

    def __post_init__(self) -> None:
        """Check the types, since golds are read from files."""
        if not isinstance(self.answer, str) or not self.answer.strip():
            raise ValueError(f"gold field 'answer' is {self.answer!r}; expected a non-empty string")
        if not isinstance(self.multiple, bool):
            raise ValueError(f"gold field 'multiple' is {self.multiple!r}; expected true or false")
        if self.unit is not None and not isinstance(self.unit, str):
            raise ValueError(f"gold field 'unit' is {self.unit!r}; expected a string or null")
        if self.tolerance is not None and not _is_tolerance(self.tolerance):
            raise ValueError(f"gold field 'tolerance' is {self.tolerance!r}; expected a finite number >= 0 or null")


@dataclass(frozen=True)
class Grade:
    r"""One verdict. ``extracted`` is the content of the last box, None if there is no box ("no answer").

    ``timed_out``: the worker gave no verdict (deadline passed, or the process died on this answer).
    """

    correct: bool
    extracted: str | None
    timed_out: bool = False


def _is_tolerance(value: object) -> bool:
    """Whether the value is a finite non-negative number (bool is not a number here)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def last_boxed(text: str) -> str | None:
    r"""Content of the last complete ``\boxed{...}`` or ``\fbox{...}``, stripped; None if there is none.

    Of nested boxes the inner one starts last and wins. A box cut off at the end of the text has no content and is
    skipped. One forward pass with a stack, so that thousands of unclosed boxes still cost linear time.
    """
    open_braces: list[tuple[int, bool]] = []
    best: tuple[int, int] | None = None
    for token in _BOX_TOKEN.finditer(text):
        kind = token.group()
        if kind == "}" and open_braces:
            start, is_box = open_braces.pop()
            if is_box and (best is None or start > best[0]):
                best = (start, token.start())
        elif kind[-1] == "{" and kind != "\\{":
            open_braces.append((token.end(), len(kind) > 1))
    return None if best is None else text[best[0] : best[1]].strip()


def plain_number(text: str) -> Fraction | None:
    """Exact value of a plain decimal numeral (``025``, ``27.0``, ``-.5``), None for anything else."""
    text = text.strip()
    if len(text) > _MAX_NUMERAL_CHARS or not _NUMERAL.fullmatch(text):
        return None
    return Fraction(text)


def within(gold: Fraction, answer: Fraction, tolerance: float | None) -> bool:
    """Whether two exact numbers agree; the tolerance is absolute and inclusive (0.1 means one tenth exactly)."""
    return abs(gold - answer) <= (Fraction(repr(tolerance)) if tolerance else 0)


def decide_plain(gold: Gold, answer: str) -> bool | None:
    """Verdict when both sides are plain numerals, else None. The worker's first rule is this same function."""
    right, said = plain_number(gold.answer), plain_number(answer)
    return None if right is None or said is None else within(right, said, gold.tolerance)


class _Died(Exception):
    """The worker's pipe closed."""


class _Worker:
    """One grading process and its pipes. Not thread-safe."""

    def __init__(self) -> None:
        """Start the process and wait for its handshake. Raises RuntimeError if it doesn't come up."""
        env = dict(os.environ)
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), env.get("PYTHONPATH")]))
        # sympy orders some sets by hash; a fixed seed makes every grade repeatable.
        env["PYTHONHASHSEED"] = "0"
        self._process = subprocess.Popen(
            [sys.executable, "-m", _WORKER_MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # math_verify and antlr warn about unparsable answers, which are a model's everyday output.
            stderr=subprocess.DEVNULL,
            # `-m` puts the current folder first on the import path: a stray sympy.py there must not be imported.
            cwd=_PACKAGE_ROOT,
            env=env,
        )
        self._buffer = b""
        self._handshake()

    def _handshake(self) -> None:
        """Wait until the imports are done."""
        try:
            hello = self._read_line(STARTUP_DEADLINE_S)
        except _Died:
            hello = {"error": "it exited at once"}
        except BaseException:
            self.kill()
            raise
        if hello is None or not hello.get("ready"):
            self.kill()
            why = f"no sign of life within {STARTUP_DEADLINE_S:g} s" if hello is None else hello.get("error")
            raise RuntimeError(f"the grading worker did not start: {why}; try: {sys.executable} -m {_WORKER_MODULE}")

    def ask(self, request: dict[str, Any], deadline_s: float) -> bool | None:
        """The worker's verdict, None if none came in time. Raises _Died if the process ended."""
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
        """The next JSON line, None once the deadline has passed. Raises _Died at the end of the stream."""
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
        """Close stdin, which ends an idle worker; kill it if it's still there 5 s later."""
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


class Grader:
    """Grades generations with one worker process, started at the first answer that needs it.

    Use it as a context manager, or call :meth:`close`. Safe to share between threads (one answer at a time).
    """

    def __init__(self, deadline_s: float = 5.0, cache_size: int = 100_000) -> None:
        """``deadline_s``: the most one answer may cost, in seconds. ``cache_size``: remembered (gold, answer) pairs.

        Raises ValueError unless deadline_s > 0 and cache_size >= 0.
        """
        if not (math.isfinite(deadline_s) and deadline_s > 0):
            raise ValueError(f"deadline_s is {deadline_s!r}; expected a finite number of seconds > 0")
        if cache_size < 0:
            raise ValueError(f"cache_size is {cache_size!r}; expected an integer >= 0")
        self._deadline_s = deadline_s
        self._cache_size = cache_size
        self._cache: OrderedDict[tuple[Gold, str], Grade] = OrderedDict()
        self._worker: _Worker | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Grader:
        """The grader itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the worker."""
        self.close()

    def close(self) -> None:
        """End the worker. A later grade starts a fresh one."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()

    def grade(self, gold: Gold | str, generation: str) -> Grade:
        """Grade the last box of a generation. Raises RuntimeError if no worker can be started."""
        return self.grade_answer(gold, last_boxed(generation))

    def grade_many(self, pairs: Iterable[tuple[Gold | str, str]]) -> list[Grade]:
        """Grade (gold, generation) pairs, in order."""
        return [self.grade(gold, generation) for gold, generation in pairs]

    def grade_answer(self, gold: Gold | str, extracted: str | None) -> Grade:
        """Grade an answer extracted earlier; None (there was no box) is incorrect."""
        gold = Gold(gold) if isinstance(gold, str) else gold
        if not extracted or len(extracted) > MAX_ANSWER_CHARS:
            return Grade(False, extracted)
        plain = decide_plain(gold, extracted)
        if plain is not None:
            return Grade(plain, extracted)
        with self._lock:
            return self._remembered(gold, extracted)

    def _remembered(self, gold: Gold, extracted: str) -> Grade:
        """The grade from the cache, or from the worker and then into the cache (least recently used out first)."""
        key = (gold, extracted)
        grade = self._cache.pop(key, None)
        if grade is None:
            verdict = self._ask(gold, extracted)
            grade = Grade(bool(verdict), extracted, timed_out=verdict is None)
        self._cache[key] = grade
        if len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        return grade

    def _ask(self, gold: Gold, extracted: str) -> bool | None:
        """The worker's verdict; None if it gave none, in which case the worker is gone too."""
        if self._worker is not None and not self._worker.alive():
            # It died between two answers, so this answer is not to blame.
            self._drop_worker()
        if self._worker is None:
            self._worker = _Worker()
        request = {"gold": asdict(gold), "answer": extracted, "deadline_s": self._deadline_s}
        try:
            verdict = self._worker.ask(request, self._deadline_s)
        except _Died:
            verdict = None
        except BaseException:
            # An interrupted exchange leaves a reply in the pipe that would be taken for the next answer's.
            self._drop_worker()
            raise
        if verdict is None:
            self._drop_worker()
        return verdict

    def _drop_worker(self) -> None:
        """Kill the worker, if there is one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
