"""Which engines exist and what each can do. Nothing else knows their names, and nothing here loads one. No torch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from orchestrator.engines.interface import Engine, Job, OpenEngine

Role = Literal["sampler", "scorer", "trainer"]


@dataclass(frozen=True)
class EngineInfo:
    """What an engine can do.

    `blends`: it can sample from behaviors that need the teacher. `keyed`: its samples are the same bytes after any
    restart and in any batch, and not only of the same law. `gpus` are how many GPUs an instance can use; 0 is a CPU.
    `module` has a function `open_engine(job)`.
    """

    roles: frozenset[Role]
    blends: bool
    keyed: bool
    gpus: range
    module: str


ENGINES: Mapping[str, EngineInfo] = MappingProxyType(
    {
        "torch": EngineInfo(
            roles=frozenset({"sampler", "scorer", "trainer"}),
            blends=True,
            keyed=True,
            gpus=range(2),
            module="orchestrator.engines.torch.engine",
        ),
    }
)


def able(*roles: Role) -> list[str]:
    """The engines that can play all of these roles."""
    return [name for name, info in ENGINES.items() if info.roles >= set(roles)]


def open_engine(name: str, job: Job) -> Engine:
    """The engine of that name, opened in this process; its libraries are imported here and not before."""
    opener: OpenEngine = importlib.import_module(ENGINES[name].module).open_engine
    return opener(job)
