"""Seconds, memory and shares of the hardware for the work of a part of `make gpu-proof`."""

from __future__ import annotations

import re
import time

import torch

from benchmarks.decoding import synchronize
from benchmarks.part_runner import DeviceUse
from orchestrator.engines import memory
from orchestrator.engines.budget import Situation
from orchestrator.engines.device import card_gib, granted
from orchestrator.engines.interface import Job
from orchestrator.planning.rates import GPUS, Gpu


class Phases:
    """Seconds of the phases of a part, one after the other; on a GPU their peaks of memory beside
    what is granted.
    """

    def __init__(self, opened: Job | None = None) -> None:
        self._opened, self._use = opened, DeviceUse()
        self._started = 0.0

    def __enter__(self) -> Phases:
        self._use.__enter__()
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._use.__exit__()

    def over(self, name: str, situation: Situation | None = None) -> dict[str, float]:
        """Of the phase that ends here: seconds, GiB of this process's tensors and of all processes
        on the GPU.

        Where it was one of the situations that memory is granted for, the GiB that its job has for
        it, too.
        """
        synchronize()
        of_phase = {f"{name}_s": time.perf_counter() - self._started}
        if torch.cuda.is_available():
            of_phase[f"{name}_torch_gib"] = torch.cuda.max_memory_allocated() / memory.GIB
        grant = (
            None if self._opened is None or situation is None else granted(self._opened, situation)
        )
        if grant is not None:
            of_phase[f"{name}_granted_gib"] = grant.total_gib
        if self._use.peak_gib is not None:
            of_phase[f"{name}_device_gib"] = self._use.peak_gib
        self._begin()
        return of_phase

    def _begin(self) -> None:
        self._use.forget()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        self._started = time.perf_counter()


def share_of_bound(speed: float, opened: Job, rows: int, context: float) -> dict[str, float]:
    """`speed` in tokens/s beside that at which reading the student's KV cache and weights fills the
    bandwidth.
    """
    gpu = this_gpu()
    if gpu is None:
        return {}
    student = memory.decoder(opened.setup.student, opened.setup)
    return {
        "share_of_bound": speed
        * (student.kv_bytes * context + student.weight_bytes / rows)
        / gpu.bytes_per_s
    }


def share_of_arithmetic(flops: float) -> dict[str, float]:
    """FLOP/s beside the GPU's; nothing on other devices."""
    gpu = this_gpu()
    return {} if gpu is None else {"share_of_arithmetic": flops / gpu.flops}


def this_gpu() -> Gpu | None:
    """The row of `planning.rates` for the GPU that is here; None where it has none."""
    gib = card_gib()
    return None if gib is None else gpu_named(torch.cuda.get_device_name(), gib)


def gpu_named(name: str, gib: float) -> Gpu | None:
    """The row whose kind is in the card's name, `NVIDIA H100 80GB HBM3`, the nearest in memory;
    None for others.
    """
    kinds = [gpu for gpu in GPUS.values() if gpu.name.partition("-")[0] in re.split(r"[ -]", name)]
    return min(kinds, key=lambda gpu: abs(gpu.gib - gib), default=None)
