"""Which addresses a process and its descendants listen on, read from /proc."""

from __future__ import annotations

from pathlib import Path

LISTENING = "0A"


def listening_addresses(pid: int) -> set[str]:
    """Hexadecimal local addresses (as in /proc/net/tcp) of listening TCP sockets below `pid`."""
    inodes = {inode for process in descendants(pid) for inode in socket_inodes(process)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in inodes:
                found.add(fields[1].split(":")[0])
    return found


def descendants(pid: int) -> set[int]:
    """`pid` and everything it started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def socket_inodes(pid: int) -> set[str]:
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            target = str(descriptor.readlink())
        except (FileNotFoundError, PermissionError):
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    return inodes
