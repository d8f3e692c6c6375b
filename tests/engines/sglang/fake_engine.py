"""An engine's process without SGLang: `python -m tests.engines.sglang.fake_engine`.

It runs out of memory at once if its cache is the one that `CARD_HOLDS` says or larger. Else it
answers a `Digest` with the size of its cache and of its batch, and a `Load` never.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from orchestrator.engines.sglang.calls import Digest, Settings
from orchestrator.liveness.children import Parent, serve

CARD_HOLDS = "TRB_TEST_CARD_HOLDS"  # tokens
SHORTAGE = """\
[2026-11-26 01:00:00] Scheduler hit an exception: Traceback (most recent call last):
  File "scheduler.py", line 1, in run_scheduler_process
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity \
of 79.10 GiB of which 603.00 MiB is free.

[2026-11-26 01:00:01] Received sigquit from a child process. It usually means the child failed.
"""


def open_fake(settings: Settings, parent: Parent) -> Callable[[Any], Any]:
    if settings.cache_tokens > int(os.environ.get(CARD_HOLDS, sys.maxsize)):
        print(SHORTAGE, flush=True)
        os._exit(1)

    def answer(call: Any) -> dict[str, str]:
        if not isinstance(call, Digest):
            time.sleep(3600)
        return {"cache": str(settings.cache_tokens), "requests": str(settings.requests)}

    return answer


if __name__ == "__main__":
    serve(open_fake)
