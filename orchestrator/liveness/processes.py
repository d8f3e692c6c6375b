"""Processes of one host: locks between them, where one works, and whether another one still runs."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any


@dataclass(frozen=True)
class Process:
    """A process of this machine; `born` tells it from a later one of the same id.

    It stays the same when its parent dies and another process becomes its parent.
    """

    pid: int
    born: int
    parent: int = field(compare=False)


def take_lock(file: IO[Any], wait: bool) -> bool:
    """Take the exclusive lock of an open file, and tell whether it is ours; with `wait`, sleep
    until it is.

    The kernel lets go of it when the file is closed, which the end of the process does however it
    ends: a lock file that a killed process leaves behind locks nothing. Raises OSError where a file
    system knows no locks and `wait` is set.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if wait:
            raise
        return False
    return True


def place() -> dict[str, Any]:
    """Where this process works, for rows of `timing.jsonl`: `host`, `process` and, if it sees any,
    its `gpu`.

    `gpu` is what CUDA_VISIBLE_DEVICES says, for example `3` or `4,5`.
    """
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"host": socket.gethostname(), "process": os.getpid()} | ({"gpu": gpus} if gpus else {})


def described(place: Mapping[str, Any]) -> str:
    """Describe a `place` for a log: `process 4711 on gpu-3, GPU 0`."""
    gpu = f", GPU {place['gpu']}" if "gpu" in place else ""
    return f"process {place['process']} on {place['host']}{gpu}"


def process_stat(pid: int) -> list[str] | None:
    """Fields of `/proc/<pid>/stat` from the third on: the state (`R`, `S`, `T` …) first, the start
    in ticks at 19.

    The first two are the id and the name in parentheses, which may hold spaces and parentheses of
    its own. None if there is no such process, or the system has no such file.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def born(pid: int) -> int | None:
    """When a process of this machine was started, in clock ticks since boot; None if it is gone, or
    not on Linux.
    """
    stat = process_stat(pid)
    return int(stat[19]) if stat else None


def is_stopped(pid: int) -> bool:
    """Whether a process of this machine is stopped by a signal."""
    stat = process_stat(pid)
    return stat is not None and stat[0] == "T"


def group_members(group: int) -> list[int]:
    """Ids of the processes of a process group that have not ended; none where the system has no
    `/proc`.

    A zombie has ended once no thread of it is left: its files, and what a driver holds for them,
    are closed by then.
    """
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        fields = process_stat(int(folder.name))
        if fields is None or int(fields[2]) != group:
            continue
        try:
            threads = len(list((folder / "task").iterdir()))
        except OSError:  # gone by now
            continue
        if fields[0] not in "ZX" or threads > 1:
            found.append(int(folder.name))
    return found


def processes() -> dict[int, Process]:
    """All processes of this machine by id, zombies left out; none where the system has no `/proc`."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (
                (folder / "stat")
                .read_text(encoding="utf-8", errors="replace")
                .rpartition(")")[2]
                .split()
            )
            if fields[0] != "Z":
                pid = int(folder.name)
                found[pid] = Process(pid, int(fields[19]), int(fields[1]))
    return found


def descendants(ancestors: Iterable[int], alive: Iterable[Process]) -> set[Process]:
    """The children of the ids `ancestors` among `alive`, their children, and so on; no ancestor
    itself.
    """
    first, alive = set(ancestors), list(alive)
    found, before = set(first), -1
    while len(found) > before:  # until a look at all processes finds no further child
        before = len(found)
        found |= {process.pid for process in alive if process.parent in found}
    return {process for process in alive if process.pid in found - first}
