"""Scratch folders of this machine; the next command removes those that a killed command left."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import refuse, shortened
from orchestrator.liveness.processes import take_lock

OWNER = "owner.lock"
# The kernel takes so many bytes for the path of a socket. Ray's longest path below the parent of
# a scratch folder has 77:
# `/tmpabcdefgh/session_2026-01-31_12-00-00_000000_1234567/sockets/plasma_store`.
LONGEST_SOCKET = 103 if sys.platform == "darwin" else 107
LONGEST_PARENT = LONGEST_SOCKET - 77
LEAST_FREE = 64 * 2**20  # bytes, for the logs of Ray and Tune
LONGEST_NAME = 40  # characters of a folder in a message
SHORT = ("/tmp", "/var/tmp", "/dev/shm")  # tried after the user's own folder


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a short-named folder of this user, locked while it is in use and removed afterwards."""
    parent = scratch_parent()
    remove_abandoned(parent)
    folder = Path(tempfile.mkdtemp(dir=parent))
    with (folder / OWNER).open("w") as lock:
        take_lock(lock, wait=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def scratch_parent(short: Sequence[str] = SHORT) -> Path:
    """Make a folder of this user in TMPDIR or, where that does not do, in one of the `short` ones.

    It has room, and a path that leaves enough bytes for sockets: the TMPDIR that a batch system
    sets for each job is often too long. UserError if no folder does.
    """
    own = [os.environ[name] for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)]
    lacks: list[str] = []
    for folder in dict.fromkeys(os.path.abspath(name) for name in (*own, *short)):
        parent = Path(folder) / f"trb-{os.getuid()}"
        lack = _lack(parent)
        if lack is None:
            return parent
        lacks.append(f"{shortened(folder, LONGEST_NAME)}: {lack}")
    longest = LONGEST_PARENT - len(f"/trb-{os.getuid()}")
    wanted = f"a folder of this machine with {LEAST_FREE >> 20} MiB free"
    limit = f"and a path of at most {longest} bytes"
    raise refuse("TMPDIR", own[0] if own else "", f"{wanted} {limit} ({'; '.join(lacks)})")


def _lack(parent: Path) -> str | None:
    """The reason why `parent`, which is made, takes no scratch folders; None if it does."""
    length = len(os.fsencode(parent))
    if length > LONGEST_PARENT:
        return f"{length - len(parent.name) - 1} bytes"
    try:
        parent.mkdir(mode=0o700, exist_ok=True)
        if parent.lstat().st_uid != os.getuid():
            return f"{parent.name} is another user's"
        with tempfile.TemporaryFile(dir=parent) as probe:
            probe.write(b"probe")
        free = shutil.disk_usage(parent).free
    except OSError as error:
        return error.strerror or str(error)
    return None if free >= LEAST_FREE else f"{free >> 20} MiB free"


def remove_abandoned(parent: Path) -> None:
    """Remove the folders whose owner is gone; their lock is free.

    A folder without a lock file is left alone: its owner may be about to make one.
    """
    for marker in parent.glob(f"*/{OWNER}"):
        with marker.open("a") as lock:
            if take_lock(lock, wait=False):
                shutil.rmtree(marker.parent, ignore_errors=True)
