"""Scratch folders of this machine that outlive a killed command and are then removed by the next."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OWNER = "owner.lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A short-named folder of this user, locked while it is in use and removed afterwards."""
    parent = Path(tempfile.gettempdir()) / f"trb-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    remove_abandoned(parent)
    folder = Path(tempfile.mkdtemp(dir=parent))
    with (folder / OWNER).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Folders whose owner is gone: their lock is free. A folder without a lock is not ours to judge."""
    for marker in parent.glob(f"*/{OWNER}"):
        with marker.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(marker.parent, ignore_errors=True)
