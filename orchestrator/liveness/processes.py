"""Processes of one host: their locks, where they work, and whether they still run."""

from __future__ import annotations

import fcntl
import os
import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any


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
