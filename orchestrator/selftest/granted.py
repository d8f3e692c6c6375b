"""The memory that the budget grants each piece of work, beside what was measured of it."""

from __future__ import annotations

from typing import Literal

import torch

from orchestrator.engines import memory
from orchestrator.engines.memory import GIB, Gpus
from orchestrator.selftest.bench import Bench
from orchestrator.selftest.runner import Found
from orchestrator.selftest.usage import Watch

Situation = Literal["sampling", "blending", "learning"]
ROUNDING_GIB = 0.1


def granted_gib(bench: Bench, situation: Situation) -> float | None:
    """GiB of the GPU that all may use together in a situation; None without a GPU, where nothing is granted."""
    if not torch.cuda.is_available():
        return None
    if situation == "learning":
        return memory.learning_gib(bench.declared, Gpus.of(bench.runtime.placement, "learner"))
    return torch.cuda.mem_get_info()[1] / GIB * bench.runtime.placement.gpu_share


def measured_beside(words: str, numbers: dict[str, float], watch: Watch, granted: float | None) -> Found:
    """What a check found, with the most memory that was used meanwhile; a warning where that is more than granted."""
    if granted is None:
        return Found("ok", words, numbers=numbers)
    peak = watch.peak_gib
    numbers = numbers | {"peak_gib": peak, "granted_gib": granted}
    words += f"; {peak:.1f} GiB used at most, {granted:.1f} granted"
    return Found("warn" if peak > granted + ROUNDING_GIB else "ok", words, numbers=numbers)
