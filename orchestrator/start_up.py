"""Importing the large libraries of a worker process in less time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Collect no garbage while modules are imported: it finds next to none among them, in a quarter of the time.

    What has been imported stays for good, so that later collections need not look at it either.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.freeze()
            gc.enable()
