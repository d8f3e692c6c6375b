"""Scratch folders of this machine; the next command removes those that a killed command left."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.liveness.processes import take_lock

OWNER = "owner.lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a short-named folder of this user, locked while it is in use and removed afterwards."""
    parent = Path(tempfile.gettempdir()) / f"trb-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    remove_abandoned(parent)
    folder = Path(tempfile.mkdtemp(dir=parent))
    with (folder / OWNER).open("w") as lock:
        take_lock(lock, wait=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Remove the folders whose owner is gone; their lock is free.

    A folder without a lock file is left alone: its owner may be about to make one.
    """
    for marker in parent.glob(f"*/{OWNER}"):
        with marker.open("a") as lock:
            if take_lock(lock, wait=False):
                shutil.rmtree(marker.parent, ignore_errors=True)
