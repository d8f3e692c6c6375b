"""What a role must know to come up anywhere: plain data, nothing that cannot cross a process."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config import Runtime, Setup
from orchestrator.grid import Unit


@dataclass(frozen=True)
class Checkpoint:
    """A model directory in Hugging Face layout, or a hub id with its revision."""

    path: str
    revision: str | None = None


@dataclass(frozen=True)
class WorkerSpec:
    """One trial's roles: its unit and setup, and where the models lie.

    `tokenizer` is the teacher's unless the setup embeds its own; `initial` is what training starts from.
    """

    unit: Unit
    setup: Setup
    runtime: Runtime
    student: Checkpoint
    teacher: Checkpoint
    initial: Checkpoint
    data_dir: str | None
