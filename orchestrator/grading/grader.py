r"""The one grader behind the training reward and behind every evaluation.

A generation counts when the content of its last ``\boxed{...}`` equals the benchmark's gold answer.
The comparison itself runs in a worker process (:mod:`orchestrator.grading.worker`), because
symbolic algebra on a model's output can hang or exhaust memory: a worker that misses its deadline
is killed and replaced, and the answer is counted wrong. This module imports neither torch nor ray
nor math_verify.
"""

from __future__ import annotations

import atexit
import functools
import math
import queue
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain

from orchestrator.grading.boxes import extract, last_boxed
from orchestrator.grading.gold import MATH, Gold, decide_plain
from orchestrator.grading.judges import GRADER_VERSION, version_of
from orchestrator.grading.process import Slot

__all__ = [
    "GRADER_VERSION",
    "MAX_ANSWER_CHARS",
    "Gold",
    "Grade",
    "Grader",
    "last_boxed",
    "shared_grader",
]

# No gold is a tenth as long. Longer answers are derivations or degenerate repetition; parsing them
# is slow and useless.
MAX_ANSWER_CHARS = 2000
# Answers a worker takes at once: about as many as it grades while another worker starts.
_SHARE = 40


@dataclass(frozen=True)
class Grade:
    r"""One verdict. ``extracted`` is the content of the last box; None without a box ("no answer").

    ``timed_out``: the worker gave no verdict (deadline passed, or the process died on this answer).
    """

    correct: bool
    extracted: str | None
    timed_out: bool = False


@functools.cache
def shared_grader(deadline_s: float) -> Grader:
    """The grader of this process, made once, since its worker takes seconds to start."""
    grader = Grader(deadline_s)
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

        `grade_many` uses all ``workers`` at once. Raises ValueError unless deadline_s > 0,
        cache_size >= 0 and workers >= 1.
        """
        if not (math.isfinite(deadline_s) and deadline_s > 0):
            raise ValueError(
                f"deadline_s is {deadline_s!r}: expected a finite number of seconds > 0"
            )
        if cache_size < 0:
            raise ValueError(f"cache_size is {cache_size!r}: expected an integer >= 0")
        if workers < 1:
            raise ValueError(f"workers is {workers!r}: expected an integer >= 1")
        self._deadline_s = deadline_s
        self._cache_size = cache_size
        self._cache: OrderedDict[tuple[Gold, str], Grade] = OrderedDict()
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
        answers_to: dict[Gold, dict[str | None, None]] = {}  # a dict for an ordered set
        for gold, generation in pairs:
            gold = Gold(gold) if isinstance(gold, str) else gold
            answer = _answer(gold, generation)
            answers.append((gold, answer))
            answers_to.setdefault(gold, {})[answer] = None
        # Different answers to one gold follow each other, so that a worker parses the gold once.
        different: list[tuple[Gold, str | None]] = []
        for gold, given in answers_to.items():
            for answer in given:
                different.append((gold, answer))
        shares = [different[start : start + _SHARE] for start in range(0, len(different), _SHARE)]
        threads = min(self._workers, len(shares))
        if threads <= 1:
            return self._grade_share(answers)
        with ThreadPoolExecutor(threads) as pool:
            graded = chain.from_iterable(pool.map(self._grade_share, shares))
            grades = dict(zip(different, graded, strict=True))
        return [grades[pair] for pair in answers]

    def _grade_share(self, answers: Iterable[tuple[Gold, str | None]]) -> list[Grade]:
        return [self.grade_answer(gold, answer) for gold, answer in answers]

    def grade_answer(self, gold: Gold | str, extracted: str | None) -> Grade:
        """Grade an answer extracted earlier; None (no box) is incorrect."""
        gold = Gold(gold) if isinstance(gold, str) else gold
        if not extracted or len(extracted) > MAX_ANSWER_CHARS:
            return Grade(False, extracted)
        if gold.judge == MATH:
            plain = decide_plain(gold, extracted)
            if plain is not None:
                return Grade(plain, extracted)
        else:
            # A judge that is not found is refused here: the worker would call every answer wrong.
            version_of(gold.judge)
        with self._lock:
            if (gold, extracted) in self._cache:
                self._cache.move_to_end((gold, extracted))
                return self._cache[gold, extracted]
        request = {"gold": asdict(gold), "answer": extracted, "deadline_s": self._deadline_s}
        slot = self._idle.get()
        try:
            verdict = slot.ask(request, self._deadline_s)
        finally:
            self._idle.put(slot)
        grade = Grade(bool(verdict), extracted, timed_out=verdict is None)
        with self._lock:
            self._cache[gold, extracted] = grade
            if len(self._cache) > self._cache_size:  # drop the least recently used one
                self._cache.popitem(last=False)
        return grade


def _answer(gold: Gold, generation: str) -> str | None:
    """The content of the last box; for the mathematical judge also of several boxes, as a list."""
    return extract(gold, generation) if gold.judge == MATH else last_boxed(generation)
