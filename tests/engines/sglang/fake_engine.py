"""An engine's process without SGLang: `python -m tests.engines.sglang.fake_engine`.

It runs out of memory at once if its cache is larger than `CARD_HOLDS`. Else it answers a `Digest`
with the size of its cache and of its batch, refuses tensors `by_handle`, and reads others. If there
is a variable `HANGS`, it writes into that file where the weights are, and never answers.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.engines.sglang.process import Digest, Load, LoadTensors, Settings
from orchestrator.liveness.children import Parent, serve

CARD_HOLDS = "TRB_TEST_CARD_HOLDS"  # tokens
HANGS = "TRB_TEST_HANGS"
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

    loaded = ""

    def answer(call: Any) -> dict[str, str] | None:
        nonlocal loaded
        if isinstance(call, Digest):
            return {
                "cache": str(settings.cache_tokens),
                "requests": str(settings.requests),
                "loaded": loaded,
            }
        assert isinstance(call, Load | LoadTensors)
        if HANGS in os.environ:
            where = call.folder if isinstance(call, Load) else call.opener[1][0]
            Path(os.environ[HANGS]).write_text(f"{where}\n")
            time.sleep(3600)
        if settings.by_handle:
            raise RuntimeError("CUDA error: invalid resource handle")
        loaded = call.version
        return None

    return answer


if __name__ == "__main__":
    serve(open_fake)
