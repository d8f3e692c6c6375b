"""Processes of one host: locks, where they work, whether they still run, and scratch folders.

`/proc` is read here and not by psutil. A process is told from a later one of its id by its start,
and psutil has only starts that move when the host's clock is set. Leases and beats hold starts for
other processes to compare, and a killer must not mistake them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from orchestrator.errors import refuse, shortened


@dataclass(frozen=True)
class Process:
    """A process of this machine; `born` tells it from a later one of the same id.

    It stays equal to itself when its parent dies and another process becomes its parent.
    """

    pid: int
    born: int
    parent: int = field(compare=False)


def take_lock(file: IO[Any], wait: bool) -> bool:
    """Take the exclusive lock of an open file; False if another process has it.

    With `wait`, sleep until it is free, and raise OSError if the file system knows no locks;
    without `wait` such a lock counts as taken. The kernel frees a lock when its file is closed,
    which any end of a process does: a lock file that a killed process leaves behind locks nothing.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if wait:
            raise
        return False
    return True


def place() -> dict[str, Any]:
    """Where this process works, for rows of `timing.jsonl`: `host`, `process` and perhaps `gpu`.

    `gpu` is the value of CUDA_VISIBLE_DEVICES, for example `3` or `4,5`.
    """
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"host": socket.gethostname(), "process": os.getpid()} | ({"gpu": gpus} if gpus else {})


def described(place: Mapping[str, Any]) -> str:
    """Describe a `place` for a log: `process 4711 on gpu-3, GPU 0`."""
    gpu = f", GPU {place['gpu']}" if "gpu" in place else ""
    return f"process {place['process']} on {place['host']}{gpu}"


def process_stat(pid: int) -> list[str] | None:
    """Fields of `/proc/<pid>/stat` from the third on: the state first, the start at 19.

    The state is `R`, `S`, `T` or the like, the start is in ticks. The first two fields are the id
    and the name in parentheses, which may hold spaces and parentheses of its own. None for a
    process that is gone, and on other systems.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def born(pid: int) -> int | None:
    """The start of a process in clock ticks since boot; None if it is gone, or not on Linux."""
    stat = process_stat(pid)
    return int(stat[19]) if stat else None


def is_stopped(pid: int) -> bool:
    """Whether a process of this machine is stopped by a signal."""
    stat = process_stat(pid)
    return stat is not None and stat[0] == "T"


def group_members(group: int) -> list[int]:
    """Ids of the processes of a process group that have not ended; none without a `/proc`.

    A zombie has ended once no thread of it is left: its files are closed by then, and a GPU's
    driver has let go of them.
    """
    members = []
    for folder in Path("/proc").glob("[0-9]*"):
        fields = process_stat(int(folder.name))
        if fields is None or int(fields[2]) != group:
            continue
        try:
            threads = len(list((folder / "task").iterdir()))
        except OSError:  # gone by now
            continue
        if fields[0] not in "ZX" or threads > 1:
            members.append(int(folder.name))
    return members


def processes() -> dict[int, Process]:
    """All processes of this machine by id, without zombies; none without a `/proc`."""
    alive = {}
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        fields = process_stat(pid)
        if fields is not None and fields[0] != "Z":
            alive[pid] = Process(pid, int(fields[19]), int(fields[1]))
    return alive


def descendants(ancestors: Iterable[int], alive: Iterable[Process]) -> set[Process]:
    """The children of `ancestors` among `alive`, their children, and so on; no ancestor itself."""
    first = set(ancestors)
    children = defaultdict(list)
    for process in alive:
        children[process.parent].append(process)
    family: set[Process] = set()
    unseen = list(first)
    while unseen:
        for process in children.pop(unseen.pop(), []):
            unseen.append(process.pid)
            if process.pid not in first:
                family.add(process)
    return family


# --- scratch folders: the next command removes those that a killed command left ---

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
