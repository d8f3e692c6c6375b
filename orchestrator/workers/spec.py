"""What a role must know to come up anywhere: plain data, nothing that cannot cross a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.config import Runtime, Setup
from orchestrator.grid import Unit
from orchestrator.wants import Sampling


@dataclass(frozen=True)
class Checkpoint:
    """A model directory in Hugging Face layout, or a hub id with its revision.

    `files` is the sha256 of those of the directory's files that are known. They are verified when the model is opened;
    `remedy` is what to do about a wrong one.
    """

    path: str
    revision: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    remedy: str = ""


@dataclass(frozen=True)
class WorkerSpec:
    """One trial's roles: its unit and setup, and where the models lie.

    `tokenizer` is the teacher's unless the setup embeds its own; `initial` is what training starts from.
    `wanted` are samples that checkpoints lack beyond those they get at once; under `keep: best`, `prunes` says whether
    the unit itself may drop checkpoints.
    """

    unit: Unit
    setup: Setup
    runtime: Runtime
    student: Checkpoint
    teacher: Checkpoint
    initial: Checkpoint
    data_dir: str | None
    wanted: Mapping[Sampling, int] = field(default_factory=dict)
    prunes: bool = True
    trained_from: Mapping[str, Any] = field(default_factory=dict)  # what the unit notes of its models


def resolved(spec: WorkerSpec) -> dict[str, Any]:
    """What `config.json` holds: the unit with everything it was started with."""
    return {"unit": asdict(spec.unit), "setup": asdict(spec.setup), "runtime": asdict(spec.runtime)}
