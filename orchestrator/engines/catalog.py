"""Which engines exist and what each can do. Nothing here loads one. No torch.

Their names stand here, in `config.EngineName`, and with what they cost in `planning.rates`; nowhere else.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from orchestrator.engines.interface import Engine, Job, OpenEngine
from orchestrator.errors import refuse
from orchestrator.start_up import quick_imports

Role = Literal["sampler", "scorer", "trainer"]


@dataclass(frozen=True)
class EngineInfo:
    """What an engine can do.

    `blends`: it can sample from behaviors that need the teacher. `module` has a function `open_engine(job)`; where it
    is None, the engine is planned with and does not exist here yet.
    """

    roles: frozenset[Role]
    blends: bool
    module: str | None


ENGINES: Mapping[str, EngineInfo] = MappingProxyType(
    {
        "torch": EngineInfo(
            roles=frozenset({"sampler", "scorer", "trainer"}),
            blends=True,
            module="orchestrator.engines.torch.engine",
        ),
        "sglang": EngineInfo(
            roles=frozenset({"sampler"}),
            blends=True,
            module=None,
        ),
    }
)


def able(*roles: Role) -> list[str]:
    """The engines that can play all of these roles."""
    return [name for name, info in ENGINES.items() if info.roles >= set(roles)]


def open_engine(name: str, job: Job) -> Engine:
    """The engine of that name, opened in this process; its libraries are imported here and not before."""
    require(name)
    module = ENGINES[name].module
    assert module is not None
    with quick_imports():
        opener: OpenEngine = importlib.import_module(module).open_engine
    return opener(job)


def require(name: str) -> None:
    """Raise UserError for a sampler that `trb plan` knows and nothing can be run with yet."""
    if ENGINES[name].module is None:
        there = ", ".join(engine for engine, info in ENGINES.items() if info.module is not None)
        expected = f"{there}: trb plan knows what {name} would cost, and nothing runs on it yet"
        raise refuse("engine.rollout", name, expected)
