"""What a unit is asked to do beyond its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.experiment.evaluations import Sampling
from orchestrator.workers.spec import WorkerSpec


@dataclass(frozen=True)
class Assignment:
    """A unit with what its roles must know, and what is asked of it now.

    `wanted` are samples that checkpoints lack beyond those they get at once. Under `keep: best`, `prunes` says whether
    the unit itself may drop checkpoints; otherwise its family decides.
    """

    spec: WorkerSpec
    wanted: Mapping[Sampling, int] = field(default_factory=dict)
    prunes: bool = True
