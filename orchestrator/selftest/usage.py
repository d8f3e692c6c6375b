"""Measures memory in use: of the whole GPU, or without a GPU of this process's descendants."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import torch

from orchestrator.engines.budget import CONTEXT_GIB, Budget
from orchestrator.engines.device import card_gib, free_gib, holders
from orchestrator.engines.memory import GIB
from orchestrator.liveness.processes import Process, descendants, processes
from orchestrator.selftest.bench import ROUNDING_GIB
from orchestrator.selftest.runner import Found

Gauge = Callable[[], float]  # GiB that are used now
Reading = tuple[float, float]  # (seconds of the monotonic clock, GiB)

LOOK_S = {"cuda": 0.02, "cpu": 0.2}


def gauge_here() -> Gauge:
    """Gauge of this process's GPU, counting all users; on CPUs, of its descendants."""
    card = card_gib()
    if card is not None:
        return lambda: card - free_gib()
    # A descendant counts until it ends, also if its parent, by which it is recognised, ends before.
    family: set[Process] = set()

    def used_gib() -> float:
        alive = processes()
        family.update(descendants([os.getpid()], alive.values()))
        return sum(_resident_bytes(each.pid) for each in family & set(alive.values())) / GIB

    return used_gib


class UsageWatch:
    """Reads a gauge repeatedly while a block runs; `readings` holds the values in order."""

    def __init__(self, gauge: Gauge):
        self.readings: list[Reading] = []
        self._gauge = gauge
        self._ended = threading.Event()
        self._every_s = LOOK_S["cuda" if torch.cuda.is_available() else "cpu"]
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)

    def __enter__(self) -> UsageWatch:
        self._read()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ):
        self._ended.set()
        self._thread.join()
        self._read()

    @property
    def peak_gib(self) -> float:
        """The most memory in use."""
        return max(gib for _, gib in self.readings)

    def peak_since(self, began: float) -> float:
        """The most memory in use from a time of the monotonic clock until now."""
        self._read()  # the thread may have missed a short phase
        return max(gib for at, gib in self.readings if at >= began)

    @property
    def lowest_gib(self) -> float:
        """The least memory in use."""
        return min(gib for _, gib in self.readings)

    def _follow(self) -> None:
        while not self._ended.wait(self._every_s):
            self._read()

    def _read(self) -> None:
        gib = self._gauge()
        self.readings.append((time.monotonic(), gib))


def came_back(readings: Sequence[Reading], at_most_gib: float) -> float | None:
    """Seconds from the first reading to the first of at most `at_most_gib`; None without one."""
    for at, gib in readings:
        if gib <= at_most_gib:
            return at - readings[0][0]
    return None


def seconds_until(gauge: Gauge, at_most_gib: float, limit_s: float) -> float | None:
    """Seconds until at most `at_most_gib` is in use; None if more still is after `limit_s`."""
    began = time.monotonic()
    while gauge() > at_most_gib:
        if time.monotonic() - began > limit_s:
            return None
        time.sleep(0.02)
    return time.monotonic() - began


def who_holds(granted: Budget | None) -> tuple[str, dict[str, float]]:
    """Processes on the card with their MiB, in words after a sentence, beside the budget's contexts.

    Every process that has opened the card takes a context there, also one that holds nothing else.
    An engine starts several, and one that the budget does not count lives on its margin.
    """
    if granted is None:
        return "", {}
    listed = holders()
    if not listed:
        return "; nvidia-smi names no process on the card", {}
    words: list[str] = []
    for holder in listed:
        mib = "an unknown part" if holder.gib is None else f"{1024 * holder.gib:,.0f} MiB"
        words.append(f"{holder.name} (process {holder.pid}) {mib}")
    counted = round(granted.parts.get("contexts", 0.0) / CONTEXT_GIB)
    numbers = {"processes": float(len(listed)), "contexts": float(counted)}
    return (
        f"; on the card {', '.join(words)}; the budget counts {counted} processes of "
        f"{1024 * CONTEXT_GIB:.0f} MiB beside what they hold"
    ), numbers


def measured_beside(
    words: str, numbers: dict[str, float], watch: UsageWatch, granted: Budget | None
) -> Found:
    """Make a finding that adds the peak of used memory; a warning if the peak exceeds the grant."""
    if granted is None:
        return Found("ok", words, numbers=numbers)
    peak, total = watch.peak_gib, granted.total_gib
    numbers = numbers | {"peak_gib": peak, "granted_gib": total}
    words += f"; {peak:.1f} GiB used at most, {total:.1f} granted"
    return Found("warn" if peak > total + ROUNDING_GIB else "ok", words, numbers=numbers)


def _resident_bytes(pid: int) -> int:
    """Memory of a process alone, without libraries and other memory that processes share."""
    with suppress(OSError, ValueError, IndexError):
        resident, shared = Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1:3]
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    return 0
