"""The memory that the budget grants each piece of work, beside what was measured of it."""

from __future__ import annotations

import torch

from orchestrator.config import RoleName
from orchestrator.engines.budget import Budget, Situation, budget
from orchestrator.engines.memory import GIB, Gpus
from orchestrator.selftest.bench import Bench
from orchestrator.selftest.runner import Found
from orchestrator.selftest.usage import Watch

ROUNDING_GIB = 0.1


def granted(bench: Bench, situation: Situation) -> Budget | None:
    """The budget of a situation on the GPU that is here; None without a GPU, where nothing is granted.

    An update is budgeted beside the teacher that the experiment declares, whatever the checks have in its place.
    """
    if not torch.cuda.is_available():
        return None
    learns = situation == "learning"
    setup = bench.declared if learns else bench.setup
    role: RoleName = "learner" if learns else "rollout"
    placement = bench.runtime.placement
    card = torch.cuda.mem_get_info()[1] / GIB * placement.gpu_share
    return budget(setup, bench.runtime, card, situation, Gpus.of(placement, role))


def measured_beside(words: str, numbers: dict[str, float], watch: Watch, granted: Budget | None) -> Found:
    """What a check found, with the most memory that was used meanwhile; a warning where that is more than granted."""
    if granted is None:
        return Found("ok", words, numbers=numbers)
    peak, total = watch.peak_gib, granted.total_gib
    numbers = numbers | {"peak_gib": peak, "granted_gib": total}
    words += f"; {peak:.1f} GiB used at most, {total:.1f} granted"
    return Found("warn" if peak > total + ROUNDING_GIB else "ok", words, numbers=numbers)
