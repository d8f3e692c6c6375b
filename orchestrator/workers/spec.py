"""What a role must know to come up anywhere: plain data, nothing that cannot cross a process."""

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
    """One trial's roles: its unit and setup, and where the models lie.

    `initial` is what training starts from: the untrained student, or a checkpoint of a supervised stage.
    """

    unit: Unit
    setup: Setup
    runtime: Runtime
    student: ModelFolder
    teacher: ModelFolder
    initial: ModelFolder
    data_dir: str | None
    trained_from: Mapping[str, Any] = field(default_factory=dict)  # what the unit notes of its models


def resolved(spec: WorkerSpec) -> dict[str, Any]:
    """What `config.json` holds: the unit with everything it was started with."""
    return {"unit": asdict(spec.unit), "setup": asdict(spec.setup), "runtime": asdict(spec.runtime)}
