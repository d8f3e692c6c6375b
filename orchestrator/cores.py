"""How many CPU cores this process may use."""

from __future__ import annotations

import os


def cores_here() -> int:
    """Cores that the process is bound to, where the system says so (macOS does not); else all of the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
