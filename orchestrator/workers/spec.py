"""The description from which a role starts in any process: plain, picklable data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.config import Placement, Runtime, Setup
from orchestrator.engines.interface import ModelFolder
from orchestrator.engines.memory import Gpus
from orchestrator.experiment.units import Unit
from orchestrator.rules import RoleName

Pairs = Mapping[str, tuple[ModelFolder, ModelFolder]]  # setup → student, teacher


@dataclass(frozen=True)
class WorkerSpec:
    """One trial's roles: its unit and setup, and the folders of its models.

    Training starts from `initial`: the untrained student, or a checkpoint of a supervised stage.
    Earlier attempts at the unit ran out of memory `shortages` times.
    """

    unit: Unit
    setup: Setup
    runtime: Runtime
    student: ModelFolder
    teacher: ModelFolder
    initial: ModelFolder
    data_dir: str | None
    trained_from: Mapping[str, Any] = field(default_factory=dict)  # the unit's record of its models
    shortages: int = 0


def resolved(spec: WorkerSpec) -> dict[str, Any]:
    """The content of `config.json`: the unit with its setup and runtime."""
    return {"unit": asdict(spec.unit), "setup": asdict(spec.setup), "runtime": asdict(spec.runtime)}


# --- resources of a trial: one placement group, with the trial itself in bundle 0 ---
#
# `inline` has no other bundle: bundle 0 has all GPUs. `colocated` puts rollout and teacher in one
# actor and the learner in another, on one bundle with at most one GPU: Ray never shares a GPU between
# actors that ask for whole ones. `split` gives each role its own bundle, with its own GPUs if any. An
# evaluator has one bundle.


Groups = tuple[tuple[RoleName, ...], ...]  # roles that share an actor

COLOCATED: Groups = (("rollout", "teacher"), ("learner",))
SPLIT: Groups = (("rollout",), ("teacher",), ("learner",))


def bundles(placement: Placement) -> list[dict[str, float]]:
    """CPUs and GPUs of each bundle; bundles share the trial's cores evenly."""
    count = {"inline": 1, "colocated": 2, "split": 1 + len(SPLIT)}[placement.mode]
    shares = [{"CPU": placement.cpus / count} for _ in range(count)]
    if placement.mode == "split":
        for bundle, (role,) in zip(shares[1:], SPLIT, strict=True):
            if placement.gpus_of(role):
                bundle["GPU"] = placement.gpus_of(role)
    elif placement.gpus:
        shares[-1]["GPU"] = placement.gpus
    return shares


def evaluator_bundles(placement: Placement) -> list[dict[str, float]]:
    """CPUs and GPUs of an evaluator, in one bundle."""
    return bundles(placement.of_evaluator)


def ranks(placement: Placement, role: RoleName) -> int:
    """Number of processes over which a role can shard a model: one per GPU, else one per core.

    Colocated actors divide the cores of their bundle.
    """
    if placement.gpus:
        return Gpus.of(placement, role).count
    sharing = len(COLOCATED) if placement.mode == "colocated" else 1
    return max(1, int(bundles(placement)[-1]["CPU"] / sharing))
