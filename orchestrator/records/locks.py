"""Locks between processes of one host."""

from __future__ import annotations

import fcntl
from typing import IO, Any


def take_lock(file: IO[Any], wait: bool) -> bool:
    """Take the exclusive lock of an open file, and tell whether it is ours; with `wait`, sleep until it is.

    The kernel lets go of it when the file is closed, which the end of the process does however it ends: a lock file
    that a killed process leaves behind locks nothing. It keeps out processes of the same host only. Raises OSError
    where a file system knows no locks and `wait` is set.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if wait:
            raise
        return False
    return True
