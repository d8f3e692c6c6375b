"""The grading process: decides whether an extracted answer equals a gold answer.

Run as ``python -m orchestrator.grading.worker``. It speaks JSON lines: first ``{"ready": true}``,
then for each ``{"gold": {...}, "answer": str, "deadline_s": float}`` on stdin one ``{"correct":
bool}`` on stdout. It ends when stdin closes. The parent keeps the deadline (`process`). If the
parent dies while an answer hangs, the worker's own alarm ends the worker.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
from typing import Any

from orchestrator.grading.gold import MATH, Gold
from orchestrator.grading.judge import judge
from orchestrator.grading.judges import judge_of
from orchestrator.start_up import quick_imports

# Address space in bytes: a tower of powers exhausts the machine's memory well before any deadline.
# At the limit Python raises MemoryError, which counts as a wrong answer like any other exception,
# or C code aborts, which the parent sees.
_MEMORY_LIMIT = 2 << 30


def _reply(request: dict[str, Any]) -> dict[str, Any]:
    """Judge one request. An answer that breaks the algebra is not a right answer.

    An exception of one's own judge ends the process, so that the answer counts as timed out: a
    server that does not answer says nothing about an answer.
    """
    # The default action of SIGALRM kills the process even inside C code, so a hanging orphan ends
    # by itself. The alarm comes too late to forestall the parent.
    signal.alarm(math.ceil(request["deadline_s"]) + 5)
    try:
        gold = Gold(**request["gold"])
        return {"correct": bool(judge_of(gold.judge)(gold, request["answer"]))}
    except Exception:
        if request["gold"].get("judge", MATH) != MATH:
            raise
        return {"correct": False}
    finally:
        signal.alarm(0)


def main() -> None:
    """Serve requests until stdin closes."""
    # Replies own the real stdout. Library output goes to stderr, or the parent would read it as a
    # verdict.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MEMORY_LIMIT if hard == resource.RLIM_INFINITY else min(_MEMORY_LIMIT, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        # Judging one answer imports everything that is imported at first use; no deadline runs yet.
        with quick_imports():
            judge(Gold("$x^2$"), "x+x")
    except Exception as error:
        print(
            json.dumps({"ready": False, "error": f"{type(error).__name__}: {error}"}),
            file=replies,
            flush=True,
        )
        return
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(_reply(json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main()
