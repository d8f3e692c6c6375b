"""Measures the machines of a sweep: `runs/.machines/<experiment>/<host>.jsonl`.

The file has a row every EVERY_S seconds, by whichever process works for the experiment there; no result depends
on it, and recovery does not reproduce it. CPU time is counted since the machine started, so that
two rows give the mean between them, whoever wrote them.
"""

from __future__ import annotations

import csv
import io
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

FOLDER = ".machines"  # in a runs folder; removing it loses curves of machines alone
EVERY_S = 15.0
GIB = 2**30
LAST_BYTES = 16 * 1024  # hold the last row, also of a machine with many GPUs
# Of nvidia-smi: number, per cent of the last second in which a kernel ran, and MiB.
QUERY = "gpu=index,utilization.gpu,memory.used"


@dataclass(frozen=True)
class MachineRow:
    """One measurement at the time `at` (seconds since 1970); numbers that are missing are left out.

    `numbers` are by name: `cpu` (busy share of all cores since the row before, in per cent),
    `memory_gib`, and for each GPU `gpu.0.use` (per cent of the last second in which a kernel ran)
    and `gpu.0.memory_gib`.
    """

    at: float
    numbers: Mapping[str, float]


def note_machine(runs: Path, experiment: str, query: Callable[[str], str]) -> None:
    """Append a row on this machine if the last one is old enough; `query` asks nvidia-smi.

    Two processes may do so at the same moment; `machine_rows` drops the second row.
    """
    path = _folder(runs, experiment) / f"{socket.gethostname()}.jsonl"
    now = time.time()
    if abs(now - _last_time(path)) < EVERY_S:
        return
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    row = {
        "at": round(now, 1),
        "busy_s": round(sum(times[:8]) - idle, 2),  # guests, behind these, are counted in user
        "idle_s": round(idle, 2),
        "memory_gib": round(psutil.virtual_memory().used / GIB, 2),
        "gpus": dict(_gpus(query(QUERY))),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def machine_rows(runs: Path, experiment: str) -> dict[str, list[MachineRow]]:
    """Host → its rows by time, in the order of the hosts' names; a torn row is left out."""
    found: dict[str, list[MachineRow]] = {}
    for path in sorted(_folder(runs, experiment).glob("*.jsonl")):
        rows: list[dict[str, Any]] = []
        for row in _parsed(path.read_text(encoding="utf-8", errors="replace")):
            if not rows or row["at"] >= rows[-1]["at"] + EVERY_S / 2:
                rows.append(row)
        found[path.stem] = [_measured(before, row) for before, row in pairwise([{}, *rows])]
    return found


def _measured(before: Mapping[str, Any], row: Mapping[str, Any]) -> MachineRow:
    numbers: dict[str, float] = {}
    if before:
        busy, idle = (row[key] - before[key] for key in ("busy_s", "idle_s"))
        if busy >= 0 and idle >= 0 and busy + idle > 0:  # else the machine was started again
            numbers["cpu"] = round(100 * busy / (busy + idle), 1)
    numbers["memory_gib"] = row["memory_gib"]
    for index, measured in row["gpus"].items():
        for name, value in measured.items():
            numbers[f"gpu.{index}.{name}"] = value
    return MachineRow(row["at"], numbers)


def _gpus(answer: str) -> Iterator[tuple[str, dict[str, float]]]:
    """(number, measurements) of each GPU; a number that a driver does not report is left out."""
    for row in csv.reader(io.StringIO(answer), skipinitialspace=True):
        if len(row) != 3:
            continue
        index, use, mib = row
        measured: dict[str, float] = {}
        if use.strip().isdigit():
            measured["use"] = float(use)
        if mib.strip().isdigit():
            measured["memory_gib"] = round(int(mib) / 1024, 2)
        yield index, measured


def _last_time(path: Path) -> float:
    """The time of the last row; 0 without one."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LAST_BYTES))
        times = [row["at"] for row in _parsed(file.read().decode(errors="replace"))]
        return times[-1] if times else 0.0
    return 0.0


def _parsed(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and isinstance(row.get("at"), float):
                yield row


def _folder(runs: Path, experiment: str) -> Path:
    return runs / FOLDER / experiment
