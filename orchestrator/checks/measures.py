"""Made-up work for engines, and what measures it: clocks, and the memory in use."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil
import torch

from orchestrator.checks.check import ROUNDING_GIB, Found, is_alive
from orchestrator.config import Setup
from orchestrator.engines.budget import CONTEXT_GIB, Budget
from orchestrator.engines.device import card_gib, free_gib, holders
from orchestrator.engines.memory import GIB
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.rollouts import Request, Rollouts, TeacherScores

EVERY_S = {"cuda": 0.02, "cpu": 0.2}  # between two readings of the memory in use

Gauge = Callable[[], float]  # GiB that are used now


# --- made-up work ---


def requests(setup: Setup, lengths: Sequence[int]) -> list[Request]:
    """Make a request for each length, with a prompt of random ids that end no response."""
    rng = random.Random(0)
    ends = {*setup.student.stop_ids, *setup.teacher.stop_ids}
    ordinary = [token for token in range(setup.vocabulary.valid) if token not in ends]
    asked: list[Request] = []
    for row, length in enumerate(lengths):
        key = SequenceKey(Purpose.EVALUATION, 0, 0, row, 0)
        asked.append(Request(tuple(rng.choices(ordinary, k=length)), key))
    return asked


def rollouts(setup: Setup, prompt: int, lengths: Sequence[int]) -> tuple[Rollouts, TeacherScores]:
    """Make up finished rollouts of these lengths after prompts of one, with a teacher's scores."""
    from orchestrator.workers.members import support_size  # loads transformers

    generator = torch.Generator().manual_seed(0)
    shape, size = (len(lengths), max(lengths)), support_size(setup)
    # Ids of a support differ, so each support is a range of ids, which wraps around at the end.
    first = torch.randint(setup.vocabulary.valid, (*shape, 1), generator=generator)
    support = (first + torch.arange(size)) % setup.vocabulary.valid
    nothing = torch.zeros(shape)
    finished = Rollouts(
        requests=requests(setup, [prompt] * len(lengths)),
        tokens_BT=support[..., 0],
        lengths_B=torch.tensor(lengths),
        truncated_B=torch.tensor(lengths) == max(lengths),
        student_BT=nothing,
        behavior_BT=nothing,
        support_ids_BTK=support,
    )
    log_q = torch.randn(*shape, size, generator=generator).log_softmax(-1)
    scores = TeacherScores(
        support_BTK=log_q, token_BT=nothing, entropy_BT=nothing, overlap_BT=nothing
    )
    return finished, scores


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of a call, including the device's queue."""
    began = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


# --- memory in use: of the whole GPU, or without one of this process's descendants ---


def gauge_here() -> Gauge:
    """Gauge of this process's GPU, counting all users; on CPUs, of its descendants."""
    card = card_gib()
    if card is not None:
        return lambda: card - free_gib()
    # A descendant counts until it ends, also if its parent, by which it is recognised, ends before.
    family: set[psutil.Process] = set()

    def used_gib() -> float:
        family.update(psutil.Process().children(recursive=True))
        return sum(_own_bytes(each) for each in family if is_alive(each)) / GIB

    return used_gib


def _own_bytes(process: psutil.Process) -> int:
    """Memory of a process alone, without libraries and other memory that processes share."""
    with suppress(psutil.Error):
        held = process.memory_info()
        return held.rss - held.shared  # pyright: ignore[reportAttributeAccessIssue] — of Linux
    return 0


class UsageWatch:
    """Reads a gauge repeatedly while a block runs.

    `readings` holds (seconds of the monotonic clock, GiB) in their order.
    """

    def __init__(self, gauge: Gauge):
        self.readings: list[tuple[float, float]] = []
        self._gauge = gauge
        self._ended = threading.Event()
        self._every_s = EVERY_S["cuda" if torch.cuda.is_available() else "cpu"]
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)

    def __enter__(self) -> UsageWatch:
        self._read()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._read()

    @property
    def peak_gib(self) -> float:
        """The most memory in use."""
        return max(gib for _, gib in self.readings)

    @property
    def lowest_gib(self) -> float:
        """The least memory in use."""
        return min(gib for _, gib in self.readings)

    def peak_since(self, began: float) -> float:
        """The most memory in use from a time of the monotonic clock until now."""
        self._read()  # the thread may have missed a short phase
        return max(gib for at, gib in self.readings if at >= began)

    def seconds_to(self, at_most_gib: float) -> float | None:
        """Seconds from the first reading to the first of at most `at_most_gib`; None without one."""
        for at, gib in self.readings:
            if gib <= at_most_gib:
                return at - self.readings[0][0]
        return None

    def _follow(self) -> None:
        while not self._ended.wait(self._every_s):
            self._read()

    def _read(self) -> None:
        gib = self._gauge()
        self.readings.append((time.monotonic(), gib))


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
    contexts = round(granted.parts.get("contexts", 0.0) / CONTEXT_GIB)
    numbers = {"processes": float(len(listed)), "contexts": float(contexts)}
    return (
        f"; on the card {', '.join(words)}; the budget counts {contexts} processes of "
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
