r"""The one grader behind the training reward and behind every evaluation.

A generation counts when the content of its last ``\boxed{...}`` equals the benchmark's gold answer.
The comparison itself runs in a worker process (:mod:`orchestrator.grading.worker`), because
symbolic algebra on a model's output can hang or exhaust memory: an answer that misses its deadline
is ended there and counted wrong. This module imports neither torch nor ray nor math_verify.

`grade_answers` bounds the sum of many answers as well. Each one first gets QUICK_S on a processor,
however busy the machine is. The few slower ones then get the whole deadline one after the other,
until some have missed it; the rest counts as timed out too. The verdict on a quick answer thus never
depends on the others, and that on a slow one only on the slow ones before it: neither on the number
of workers nor on what is remembered.
"""

from __future__ import annotations

import atexit
import functools
import logging
import queue
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from orchestrator.cores import cores_here
from orchestrator.grading.gold import MATH, Gold, decide_plain, version_of
from orchestrator.grading.notation import MAX_ANSWER_CHARS, extract, last_boxed
from orchestrator.liveness import heartbeat
from orchestrator.liveness.children import Child, ChildFailed, ChildLost

logger = logging.getLogger(__name__)

MOST_WORKERS = 4  # of a `shared_grader`: each takes about 100 MB
# Answers a worker takes at once: about as many as it grades while another worker starts.
_SHARE = 40
# Seconds on a processor for the first try of an answer. Of 5,400 pairs made of the golds of MATH, GSM8K,
# AIME, AMC, DAPO and OlympiadBench the slowest took 0.21 s, and one in a thousand over 0.1 s.
QUICK_S = 0.5
# Answers that may miss the whole deadline before slow ones get it no more: LATE, or a share of many.
LATE = 8
_ANSWERS_PER_LATE = 250


@dataclass(frozen=True)
class Grade:
    r"""One verdict. ``extracted`` is the content of the last box; None without a box ("no answer").

    ``timed_out``: the worker gave no verdict (deadline passed, or the process died on this answer),
    or too many answers before this slow one had none.
    """

    correct: bool
    extracted: str | None
    timed_out: bool = False


@dataclass(frozen=True)
class _Remembered:
    """A grade, and whether it took longer than QUICK_S."""

    grade: Grade
    slow: bool


@functools.cache
def shared_grader(deadline_s: float) -> Grader:
    """The grader of this process, made once, since its workers take seconds to start."""
    # Half of the cores at most: the teacher scores meanwhile. Idle workers are not started.
    grader = Grader(deadline_s, workers=max(1, min(MOST_WORKERS, cores_here() // 2)))
    atexit.register(grader.close)
    return grader


class Grader:
    """Grades generations with worker processes, which start at the first answers that need them.

    Use it as a context manager, or call :meth:`close`. Safe to share between threads.
    """

    def __init__(
        self, deadline_s: float = 5.0, cache_size: int = 100_000, workers: int = 1
    ) -> None:
        """Set limits: seconds for one answer, cached (gold, answer) pairs, processes.

        `grade_many` uses all ``workers`` at once.
        """
        self._deadline_s = deadline_s
        self._quick_s = QUICK_S if deadline_s > QUICK_S else None
        self._cache_size = cache_size
        self._cache: OrderedDict[tuple[Gold, str], _Remembered] = OrderedDict()
        self._lock = threading.Lock()
        self._workers = workers
        # Last in, first out: while one process is enough, the others are not started.
        self._idle: queue.LifoQueue[Slot] = queue.LifoQueue()
        for _ in range(workers):
            self._idle.put(Slot())

    def __enter__(self) -> Grader:
        """Return the grader itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the workers."""
        self.close()

    def close(self) -> None:
        """End the workers once they are idle. A later grade starts a fresh one."""
        slots = [self._idle.get() for _ in range(self._workers)]
        for slot in slots:
            slot.close()
            self._idle.put(slot)

    def grade(self, gold: Gold | str, generation: str) -> Grade:
        """Grade the boxed answer of a generation. Raises RuntimeError if no worker can be started."""
        gold = Gold(gold) if isinstance(gold, str) else gold
        return self.grade_answer(gold, _answer(gold, generation))

    def grade_many(self, pairs: Iterable[tuple[Gold | str, str]]) -> list[Grade]:
        """Grade (gold, generation) pairs on all workers, each different answer once; in order."""
        answers: list[tuple[Gold, str | None]] = []
        for gold, generation in pairs:
            gold = Gold(gold) if isinstance(gold, str) else gold
            answers.append((gold, _answer(gold, generation)))
        return self.grade_answers(answers)

    def grade_answers(self, answers: Sequence[tuple[Gold, str | None]]) -> list[Grade]:
        """Grade answers extracted earlier, as `grade_many` does."""
        answers_to: dict[Gold, dict[str | None, None]] = {}  # a dict for an ordered set
        for gold, answer in answers:
            answers_to.setdefault(gold, {})[answer] = None
        # Different answers to one gold follow each other, so that a worker parses the gold once.
        different: list[tuple[Gold, str | None]] = []
        for gold, given in answers_to.items():
            for answer in given:
                different.append((gold, answer))
        shares = [different[start : start + _SHARE] for start in range(0, len(different), _SHARE)]
        threads = min(self._workers, len(shares))
        if threads <= 1:
            tried = self._try_share(different)
        else:
            with ThreadPoolExecutor(threads) as pool:
                tried = list(chain.from_iterable(pool.map(self._try_share, shares)))
        grades: dict[tuple[Gold, str | None], Grade] = {}
        slow: list[tuple[Gold, str | None]] = []
        for pair, grade in zip(different, tried, strict=True):
            if grade is None:
                slow.append(pair)
            else:
                grades[pair] = grade
        if slow:
            grades |= self._grade_slow(slow, max(LATE, len(different) // _ANSWERS_PER_LATE))
        return [grades[pair] for pair in answers]

    def _try_share(self, answers: Iterable[tuple[Gold, str | None]]) -> list[Grade | None]:
        """Grades of quick answers; None for the others."""
        return [self._grade(gold, answer, self._quick_s) for gold, answer in answers]

    def _grade_slow(
        self, slow: Sequence[tuple[Gold, str | None]], allowed: int
    ) -> dict[tuple[Gold, str | None], Grade]:
        """Grade slow answers with the whole deadline until `allowed` of them have timed out.

        All after the last of these count as timed out, also those that another worker has judged
        meanwhile or an earlier call remembers.
        """
        grades: dict[tuple[Gold, str | None], Grade] = {}
        late = given_up = 0
        with ThreadPoolExecutor(self._workers) as pool:
            for start in range(0, len(slow), self._workers):
                some = slow[start : start + self._workers]
                graded: list[Grade] = []
                if late < allowed:
                    graded = list(pool.map(self._grade_wholly, some))
                for at, (gold, answer) in enumerate(some):
                    grade = Grade(False, answer, timed_out=True)
                    if late < allowed:
                        grade = graded[at]
                        late += grade.timed_out
                    else:
                        given_up += 1
                    grades[gold, answer] = grade
        if given_up:
            logger.warning(
                "%d answers missed %g s; %d more that took over %g s count as timed out as well",
                late, self._deadline_s, given_up, QUICK_S,
            )  # fmt: skip
        return grades

    def _grade_wholly(self, pair: tuple[Gold, str | None]) -> Grade:
        grade = self._grade(*pair, cpu_s=None)
        assert grade is not None
        return grade

    def grade_answer(self, gold: Gold | str, extracted: str | None) -> Grade:
        """Grade an answer extracted earlier; None (no box) is incorrect."""
        gold = Gold(gold) if isinstance(gold, str) else gold
        grade = self._grade(gold, extracted, self._quick_s)
        return self._grade_wholly((gold, extracted)) if grade is None else grade

    def _grade(self, gold: Gold, extracted: str | None, cpu_s: float | None) -> Grade | None:
        """The grade; with `cpu_s` None for an answer that takes longer than that."""
        if not extracted or len(extracted) > MAX_ANSWER_CHARS:
            return Grade(False, extracted)
        if gold.judge == MATH:
            plain = decide_plain(gold, extracted)
            if plain is not None:
                return Grade(plain, extracted)
        else:
            # A judge that is not found is refused here: the worker would call every answer wrong.
            version_of(gold.judge)
            cpu_s = None  # it may wait for a server, and its user has chosen the deadline
        with self._lock:
            if (gold, extracted) in self._cache:
                self._cache.move_to_end((gold, extracted))
                remembered = self._cache[gold, extracted]
                return None if remembered.slow and cpu_s else remembered.grade
        slot = self._idle.get()
        try:
            request = {"gold": asdict(gold), "answer": extracted}
            verdict = slot.ask(request, self._deadline_s, cpu_s)
        finally:
            self._idle.put(slot)
        if verdict is None and cpu_s:
            return None
        grade = Grade(bool(verdict), extracted, timed_out=verdict is None)
        with self._lock:
            self._cache[gold, extracted] = _Remembered(grade, cpu_s is None)
            if len(self._cache) > self._cache_size:  # drop the least recently used one
                self._cache.popitem(last=False)
        return grade


def _answer(gold: Gold, generation: str) -> str | None:
    """The content of the last box; for the mathematical judge also of several boxes, as a list."""
    return extract(gold, generation) if gold.judge == MATH else last_boxed(generation)


# --- the grading process, from its parent's end; it starts at the first answer that needs it ---
#
# Three things bound the cost of an answer. The process keeps the deadline in a fork of its own that
# it can kill (`worker`), and limits the memory, since an answer can exhaust the machine before its
# deadline. Should the process itself be gone or silent, it is replaced before the next answer, which
# therefore does not pay for the previous one. Starting takes seconds, because of sympy. The deadline
# of the first answer starts only once the worker has done its imports.


# Importing sympy on a loaded machine may take many seconds.
STARTUP_DEADLINE_S = 120.0
# The process says by itself that a deadline has passed; a machine without memory may be this late.
_LATE_S = 30.0

_WORKER_MODULE = "orchestrator.grading.worker"


class Slot:
    """A place for one grading process at a time, which outlives its processes. Not thread-safe."""

    def __init__(self) -> None:
        """Make an empty place, which the first request fills."""
        self.worker: Child | None = None

    def ask(
        self, request: dict[str, Any], deadline_s: float, cpu_s: float | None = None
    ) -> bool | None:
        """The process's verdict; None if it gave none within `deadline_s`.

        With `cpu_s` an answer also ends after as many seconds on a processor, however busy the
        machine is. Raises RuntimeError if no process can be started.
        """
        if self.worker is not None and not self.worker.alive():
            # It died between two answers, so this answer is not to blame.
            self.close()
        if self.worker is None:
            self.worker = _started()
        answered = False
        verdict = None
        try:
            limits = {"deadline_s": deadline_s, "cpu_s": cpu_s}
            verdict = self.worker.ask(request | limits, deadline_s + _LATE_S)
            answered = True
        except (ChildLost, ChildFailed):
            heartbeat.advance()  # an answer without a verdict is a piece of work as well
        finally:
            if not answered:
                # Also after an interrupt: the reply still to come would pass for the next answer's.
                self.close()
        return verdict

    def close(self) -> None:
        """End the process. A later request starts a fresh one."""
        if self.worker is not None:
            self.worker.end()
            self.worker = None


def _started() -> Child:
    """A worker that is ready. Raises RuntimeError if it does not come up."""
    # sympy orders some sets by hash; a fixed seed makes every grade repeatable. math_verify and
    # antlr warn about unparsable answers, which are a model's everyday output.
    environment = {"PYTHONHASHSEED": "0"}
    worker = Child(_WORKER_MODULE, "the grading worker", environment, subprocess.DEVNULL)
    try:
        worker.ask(None, STARTUP_DEADLINE_S)
    except (ChildLost, ChildFailed) as error:
        worker.end()
        raise RuntimeError(
            f"the grading worker did not start: {error}; try: "
            f"{sys.executable} -c 'import {_WORKER_MODULE}'"
        ) from None
    except BaseException:
        worker.end()
        raise
    return worker
