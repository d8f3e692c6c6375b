"""The description from which a role starts in any process: plain, picklable data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.config import Runtime, Setup
from orchestrator.engines.interface import ModelFolder
from orchestrator.experiment.units import Unit

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
