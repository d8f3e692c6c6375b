"""The grading process: decides whether an extracted answer equals a gold answer.

A child of the process that grades (`liveness.children`): after a first call that loads the algebra,
each call is `{"gold": {...}, "answer": str, "deadline_s": float}` and its result is whether the
answer is correct. The parent keeps the deadline (`process`). If the parent dies while an answer
hangs, the worker's own alarm ends the worker.
"""

from __future__ import annotations

import math
import resource
import signal
from collections.abc import Callable
from typing import Any

from orchestrator.grading.gold import MATH, Gold
from orchestrator.grading.judge import judge
from orchestrator.grading.judges import judge_of
from orchestrator.liveness.children import Parent, serve
from orchestrator.start_up import quick_imports

# Address space in bytes: a tower of powers exhausts the machine's memory well before any deadline.
# At the limit Python raises MemoryError, which counts as a wrong answer like any other exception,
# or C code aborts, which the parent sees.
_MEMORY_LIMIT = 2 << 30


def _open(call: None, parent: Parent) -> Callable[[dict[str, Any]], bool]:
    """Limit the memory, and load the algebra."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MEMORY_LIMIT if hard == resource.RLIM_INFINITY else min(_MEMORY_LIMIT, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    # Judging one answer imports everything that is imported at first use; no deadline runs yet.
    with quick_imports():
        judge(Gold("$x^2$"), "x+x")
    return _is_correct


def _is_correct(request: dict[str, Any]) -> bool:
    """Judge one request. An answer that breaks the algebra is wrong.

    An exception of a user's own judge fails the call, and the answer counts as timed out: a language
    model's server that is down says nothing about an answer.
    """
    # The default action of SIGALRM kills the process even inside C code, where no thread of Python
    # can notice that the parent is gone. The alarm comes too late to forestall the parent.
    signal.alarm(math.ceil(request["deadline_s"]) + 5)
    try:
        gold = Gold(**request["gold"])
        return bool(judge_of(gold.judge)(gold, request["answer"]))
    except Exception:
        if request["gold"].get("judge", MATH) != MATH:
            raise
        return False
    finally:
        signal.alarm(0)


if __name__ == "__main__":
    serve(_open)
