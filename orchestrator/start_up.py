"""What a process begins with: its runs folder, and the import of large libraries in less time."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def default_runs() -> Path:
    """The folder of the run directories where no option names one."""
    return Path(os.environ.get("TRB_RUNS") or "runs")


@contextmanager
def quick_imports() -> Iterator[None]:
    """Collect no garbage while modules are imported: it finds next to none among them, in a quarter of the time.

    What has been imported stays for good, so that later collections need not look at it either. Where nothing new was
    imported, all is left as it is: what else is alive by then may be garbage one day.
    """
    collecting, known = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            if len(sys.modules) > known:
                gc.freeze()
                atexit.register(gc.unfreeze)  # else Triton, at the end of the process, reports its objects as leaked
            gc.enable()
