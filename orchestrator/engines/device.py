"""The GPU of this process: its memory, free and held, and the holders. Never run on a GPU."""

from __future__ import annotations

import csv
import gc
import io
import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.engines.budget import Budget, Situation, budget
from orchestrator.engines.interface import Job
from orchestrator.engines.memory import GIB, MOST_TOKENS
from orchestrator.errors import GpuFull

DRIVER = Path("/proc/driver/nvidia/version")  # exists while NVIDIA's kernel module is loaded
WSL = Path("/dev/dxg")  # NVIDIA's driver under Windows
FREED_S = 60.0  # a driver reclaims tens of GiB of an ended process within seconds
LOOK_S = 0.2
WATCH_S = 0.25
ANSWERS_S = 20.0  # nvidia-smi on a node whose driver is busy
# torch's allocator reads the first, else the second, which is its older name. torch_memory_saver
# refuses expandable segments under the older name and does not see them under the newer one, where
# an engine would keep the memory that it is to give back.
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def has_driver() -> bool:
    """Whether this machine has an NVIDIA driver, which torch's build for CPUs does not see."""
    return DRIVER.exists() or WSL.exists()


def hide_gpus() -> None:
    """Hide all GPUs from this process and its children, before torch looks for one.

    Work without a GPU calls it. Ray hides GPUs from such work in a cluster that `trb` started, but
    a cluster that the user started may leave them visible.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def card_gib() -> float | None:
    """Memory of the GPU as torch sees it; None without one. An H100 of 80 GB has 79.1."""
    import torch

    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory / GIB


def free_gib() -> float:
    """Free memory of the GPU, in GiB."""
    import torch

    return torch.cuda.mem_get_info()[0] / GIB


@dataclass(frozen=True)
class MemoryHolder:
    """A process that holds GPU memory; `gib` is None if the driver does not report the amount."""

    pid: int
    name: str
    gib: float | None

    def __str__(self) -> str:
        held = "an unknown part" if self.gib is None else f"{self.gib:.1f} GiB"
        return f"{self.name} (process {self.pid}, {held})"


def holders() -> list[MemoryHolder]:
    """Processes that hold memory of this GPU; empty without nvidia-smi, and in most containers."""
    import torch

    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    return holders_in(nvidia_smi("compute-apps=gpu_uuid,pid,process_name,used_memory"), uuid)


def holders_in(listed: str, uuid: str) -> list[MemoryHolder]:
    """The processes of one GPU from nvidia-smi's list of all: lines of UUID, id, name and MiB."""
    processes: list[MemoryHolder] = []
    for row in csv.reader(io.StringIO(listed), skipinitialspace=True):
        if len(row) != 4:
            continue
        gpu, pid, path, mib = row
        # torch gives the UUID without the prefix of nvidia-smi.
        if gpu.removeprefix("GPU-") != uuid.removeprefix("GPU-") or not pid.isdigit():
            continue
        # Some drivers report `[N/A]` for the memory of a process.
        gib = int(mib) / 1024 if mib.strip().isdigit() else None
        processes.append(MemoryHolder(int(pid), Path(path).name, gib))
    return processes


def nvidia_smi(query: str) -> str:
    """The answer of nvidia-smi to `--query-…`, as CSV without units; empty if missing or failed."""
    command = ["nvidia-smi", f"--query-{query}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=ANSWERS_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def granted(job: Job, situation: Situation, max_tokens: int | None = None) -> Budget | None:
    """The budget of a job on this process's GPU; None without one. UserError if it is too small."""
    card = card_gib()
    if card is None:
        return None
    return budget(
        job.setup,
        job.runtime,
        card * job.runtime.placement.gpu_share,
        situation,
        job.on,
        max_tokens,
        job.lora.rank if job.lora else 0,
        job.sampling,
    )


def moves_away(job: Job, there: Budget | None) -> bool:
    """Whether a role gives its memory up while others work: it takes turns, and is not resident."""
    return job.takes_turns and not (there is not None and there.resident)


def pass_tokens(job: Job, situation: Literal["scoring", "learning"]) -> int:
    """Tokens in one pass: the configured number, else the number that surely fits."""
    if job.runtime.micro_batch_tokens is not None:
        return job.runtime.micro_batch_tokens
    there = granted(job, situation)
    return MOST_TOKENS if there is None else there.tokens


def drop_garbage() -> None:
    """Free objects that only refer to each other, and return torch's unused GPU memory."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()  # does nothing in a process that has used no GPU


def wait_for_memory(
    needed_gib: float,
    purpose: str,
    limit_s: float = FREED_S,
    free: Callable[[], float] = free_gib,
    held_by: Callable[[], list[MemoryHolder]] = holders,
) -> None:
    """Wait until `needed_gib` of the GPU are free. Raises GpuFull with the holders after `limit_s`.

    The kernel ends a process before the driver has reclaimed all of its memory. This process itself
    may hold models in garbage that Python has not collected.
    """
    end = time.monotonic() + limit_s
    if free() < needed_gib:
        drop_garbage()
    while (there := free()) < needed_gib:
        if time.monotonic() >= end:
            by = "; ".join(map(str, held_by())) or "no process that can be seen from here"
            raise GpuFull(
                f"GPU memory: {there:.1f} GiB are free after {limit_s:.0f} s; "
                f"{purpose} takes {needed_gib:.1f} GiB; the rest is held by {by}"
            )
        time.sleep(LOOK_S)


class PeakWatch:
    """Tracks the peak memory in use on this process's GPU, by all processes together.

    A thread polls it every `every_s` seconds and may miss shorter peaks of other processes. Peaks
    of this process are in the allocator's count, which `watch_gpu` adds.
    """

    def __init__(self, used: Callable[[], float], every_s: float = WATCH_S):
        self._used = used
        self._every_s = every_s
        self._ended = threading.Event()
        self._peak = used()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._follow, name="gpu-memory", daemon=True)
        self._thread.start()

    def take(self) -> float:
        """The peak in GiB since the last call."""
        now = self._used()
        with self._lock:
            peak, self._peak = max(self._peak, now), now
        return peak

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.wait(self._every_s):
            now = self._used()
            with self._lock:
                self._peak = max(self._peak, now)


def watch_gpu() -> PeakWatch | None:
    """Start a watch over the GPU of this process; None without one. Never run on a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None

    def used_gib() -> float:
        free, total = torch.cuda.mem_get_info()
        # The allocator knows the peaks between two polls, but only of this process.
        own = torch.cuda.memory_reserved()
        top = torch.cuda.max_memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        return (total - free + max(0, top - own)) / GIB

    return PeakWatch(used_gib)
