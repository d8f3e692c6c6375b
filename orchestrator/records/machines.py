"""Measures the machines of a sweep: `runs/.machines/<experiment>/<host>.jsonl`.

It has a row about every EVERY_S seconds, by whichever process works there. No result depends on it.
"""

from __future__ import annotations

import csv
import io
import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

FOLDER = ".machines"  # in a runs folder
EVERY_S = 15.0
GIB = 2**30
# Of nvidia-smi: number, per cent of the last second in which a kernel ran, and MiB.
QUERY = "gpu=index,utilization.gpu,memory.used"


def note_machine(runs: Path, experiment: str, query: Callable[[str], str]) -> None:
    """Append a row on this machine if the last one is old enough; `query` asks nvidia-smi.

    CPU seconds are those since the machine started, so that two rows give the mean between them,
    whoever wrote them. A number that a driver does not report is left out.
    """
    path = runs / FOLDER / experiment / f"{socket.gethostname()}.jsonl"
    if path.exists() and abs(time.time() - path.stat().st_mtime) < EVERY_S:
        return
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    busy = sum(times[:8]) - idle  # what follows, of guests, is counted in the others
    row = {"at": round(time.time(), 1), "busy_s": round(busy, 2), "idle_s": round(idle, 2)}
    row["memory_gib"] = round(psutil.virtual_memory().used / GIB, 2)
    for cells in csv.reader(io.StringIO(query(QUERY)), skipinitialspace=True):
        gpu, use, mib = cells if len(cells) == 3 else ("", "", "")
        if use.strip().isdigit():
            row[f"gpu.{gpu}.use"] = float(use)
        if mib.strip().isdigit():
            row[f"gpu.{gpu}.memory_gib"] = round(int(mib) / 1024, 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def machine_rows(runs: Path, experiment: str) -> dict[str, dict[float, dict[str, float]]]:
    """Host → time (since 1970) → measurements by name, in the order of hosts and times.

    `cpu` is the busy share of all cores since the row before, in per cent. Torn rows are left out,
    and rows that two processes wrote at the same moment are one.
    """
    found: dict[str, dict[float, dict[str, float]]] = {}
    for path in sorted((runs / FOLDER / experiment).glob("*.jsonl")):
        rows = found[path.stem] = {}
        last, busy_before, idle_before = 0.0, 0.0, 0.0
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                at, busy, idle = (row.pop(key) for key in ("at", "busy_s", "idle_s"))
                if at < last + EVERY_S / 2:
                    continue
                more, rest = busy - busy_before, idle - idle_before
                if last and min(more, rest) >= 0 < more + rest:  # else it was started again
                    row["cpu"] = round(100 * more / (more + rest), 1)
                rows[at], last, busy_before, idle_before = row, at, busy, idle
    return found
