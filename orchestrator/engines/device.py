"""The GPU of this process: what it has, what of it is free, and who holds the rest. Never run on a GPU."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.engines.budget import MOST_TOKENS, Budget, Situation, budget
from orchestrator.engines.interface import Job
from orchestrator.engines.memory import GIB
from orchestrator.errors import GpuFull

DRIVER = Path("/proc/driver/nvidia/version")  # there while NVIDIA's kernel module is loaded
WSL = Path("/dev/dxg")  # NVIDIA's driver under Windows
FREED_S = 60.0  # a driver takes back tens of GiB of an ended process within seconds
LOOK_S = 0.2
ANSWERS_S = 20.0  # nvidia-smi on a node whose driver is busy


def has_driver() -> bool:
    """Whether this machine has a driver for NVIDIA GPUs; torch's build for CPUs sees none."""
    return DRIVER.exists() or WSL.exists()


def hide_gpus() -> None:
    """Let this process and its children see no GPU: for work that asked for none. Call it before torch looks for one.

    Ray hides the GPUs of a cluster that it started for a sweep; one that others started may leave all of them visible.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def card_gib() -> float | None:
    """Memory of the GPU as torch sees it; None without one. An H100 of 80 GB has 79.1."""
    import torch

    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory / GIB


def free_gib() -> float:
    """Memory of the GPU that nobody holds."""
    import torch

    return torch.cuda.mem_get_info()[0] / GIB


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a GPU; `gib` is None where the driver does not say how much."""

    pid: int
    name: str
    gib: float | None

    def __str__(self) -> str:
        held = "an unknown part" if self.gib is None else f"{self.gib:.1f} GiB"
        return f"{self.name} (process {self.pid}, {held})"


def holders() -> list[Holder]:
    """Processes that hold memory of this process's GPU; none where nvidia-smi is missing, or in most containers."""
    import torch

    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    return holders_in(nvidia_smi("compute-apps=gpu_uuid,pid,process_name,used_memory"), uuid)


def holders_in(listed: str, uuid: str) -> list[Holder]:
    """The processes of one GPU in what nvidia-smi lists of all: lines of UUID, id, name and MiB."""
    found = []
    for row in csv.reader(io.StringIO(listed), skipinitialspace=True):
        if len(row) == 4 and row[0].removeprefix("GPU-") == uuid.removeprefix("GPU-") and row[1].isdigit():
            mib = row[3].strip()
            found.append(Holder(int(row[1]), Path(row[2]).name, int(mib) / 1024 if mib.isdigit() else None))
    return found


def nvidia_smi(query: str) -> str:
    """The answer of nvidia-smi to `--query-…`, as CSV without units; empty where it is missing or fails."""
    command = ["nvidia-smi", f"--query-{query}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWERS_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def granted(job: Job, situation: Situation, max_tokens: int | None = None) -> Budget | None:
    """The budget of a job on the GPU that is here; None without one. Raises UserError for a GPU that is too small."""
    card = card_gib()
    if card is None:
        return None
    return budget(job.setup, job.runtime, card * job.runtime.placement.gpu_share, situation, job.on, max_tokens)


def pass_tokens(job: Job, situation: Literal["scoring", "learning"]) -> int:
    """Tokens in one pass: the configured number, else those that surely fit."""
    if job.runtime.micro_batch_tokens is not None:
        return job.runtime.micro_batch_tokens
    there = granted(job, situation)
    return MOST_TOKENS if there is None else there.tokens


def wait_for_memory(
    needed_gib: float,
    purpose: str,
    limit_s: float = FREED_S,
    free: Callable[[], float] = free_gib,
    held_by: Callable[[], list[Holder]] = holders,
) -> None:
    """Return once so much of the GPU is free. Raises GpuFull, which says what holds it, after `limit_s` seconds.

    The kernel ends a process before the driver has taken back all of its memory.
    """
    end = time.monotonic() + limit_s
    while (there := free()) < needed_gib:
        if time.monotonic() >= end:
            by = "; ".join(map(str, held_by())) or "no process that can be seen from here"
            raise GpuFull(
                f"GPU memory: {there:.1f} GiB are free after {limit_s:.0f} s — {purpose} takes {needed_gib:.1f} GiB; "
                f"the rest is held by {by}"
            )
        time.sleep(LOOK_S)
