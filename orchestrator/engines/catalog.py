"""The catalog of engines and their abilities. Imports neither an engine nor torch.

Engine names appear only here, in `rules.EngineName` and `TrainerName`, and in the rates of
`planning.rates`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from orchestrator import config
from orchestrator.engines.interface import Engine, Job, OpenEngine
from orchestrator.engines.memory import LONGEST_ROUND
from orchestrator.errors import refuse
from orchestrator.start_up import quick_imports

EngineRole = Literal["sampler", "scorer", "trainer"]


@dataclass(frozen=True)
class EngineInfo:
    """The abilities of an engine.

    - `roles` are the roles that it can play.
    - `blends`: it can sample from behaviors that need the teacher.
    - `keyed`: a repeated call gives the same bytes in any process and batch. Otherwise it gives
      samples of the same law.
    - `module` has a function `open_engine(job)`.
    - `packages` are its imports that the default install lacks. Without them the engine can be
      planned with, but not run.
    - `pooled`: its sampler keeps one KV cache of a fixed number of tokens, in its own processes.
      Other samplers make a cache per batch.
    - `spread` are the roles that can use several GPUs: a sampler splits each layer by heads, scorer
      and trainer shard parameters. Other roles use one device.
    - `tools` is a module of an engine that compiles kernels on demand. Its function
      `missing(environ)` lists the tools that a machine with a GPU lacks.
    - `longest_draft` is the largest γ that can be set; None for no limit.
    - `adapts`: its trainer can update low-rank adapters alone (`interface.Lora`).
    - `resident`: its trainer can stay on a GPU that it shares, and keep all activations of a pass;
      both were counted (`engines.memory`).
    """

    roles: frozenset[EngineRole]
    blends: bool
    keyed: bool
    module: str
    packages: tuple[str, ...] = ()
    pooled: bool = False
    spread: frozenset[EngineRole] = frozenset()
    tools: str = ""
    longest_draft: int | None = None
    adapts: bool = False
    resident: bool = False


ENGINES: Mapping[str, EngineInfo] = MappingProxyType(
    {
        "torch": EngineInfo(
            roles=frozenset({"sampler", "scorer", "trainer"}),
            blends=True,
            keyed=True,
            module="orchestrator.engines.torch.engine",
            adapts=True,
            resident=True,
        ),
        "sglang": EngineInfo(
            roles=frozenset({"sampler"}),
            blends=True,
            keyed=False,
            module="orchestrator.engines.sglang.engine",
            longest_draft=LONGEST_ROUND,
            packages=("sglang",),
            pooled=True,
            spread=frozenset({"sampler"}),
            tools="orchestrator.engines.sglang.toolchain",
        ),
        "verl": EngineInfo(
            roles=frozenset({"scorer", "trainer"}),
            blends=False,
            keyed=True,  # on CPUs, as many ranks as before
            module="orchestrator.engines.verl.engine",
            packages=("verl",),
            spread=frozenset({"scorer", "trainer"}),
        ),
    }
)


def able(*roles: EngineRole) -> list[str]:
    """Names of the engines that can play all of these roles."""
    return [name for name, info in ENGINES.items() if info.roles >= set(roles)]


def adapting() -> list[str]:
    """Names of the engines whose trainers can update low-rank adapters alone."""
    return [name for name in able("trainer") if ENGINES[name].adapts]


def stays(sampler: str, trainer: str) -> bool:
    """Whether a learner of one engine can stay on a GPU beside the cache of another engine."""
    return ENGINES[sampler].pooled and ENGINES[trainer].resident


def spreading(*roles: EngineRole) -> list[str]:
    """Names of the engines that can use several GPUs for all of these roles."""
    return [name for name, info in ENGINES.items() if info.spread >= set(roles)]


def sampler_of(chosen: str, teacher_decodes: bool) -> str:
    """The sampling engine: `chosen`, or the first that blends if `chosen` must blend but cannot."""
    if ENGINES[chosen].blends or not teacher_decodes:
        return chosen
    return next(name for name in able("sampler") if ENGINES[name].blends)


def open_engine(name: str, job: Job) -> Engine:
    """Open the engine `name` in this process, which imports its libraries."""
    require("engine", name)
    with quick_imports():
        opener: OpenEngine = importlib.import_module(ENGINES[name].module).open_engine
    return opener(job)


def require_all(engine: config.EngineConfig) -> None:
    """Raise UserError for the first engine of a setup that is not installed here."""
    require("engine.sampler", engine.sampler)
    require("engine.trainer", engine.trainer)


def require(key: str, name: str) -> None:
    """Raise UserError that names `key` if packages of engine `name` are not installed here."""
    info = ENGINES[name]
    missing = [package for package in info.packages if importlib.util.find_spec(package) is None]
    if missing:
        others = " or ".join(engine for engine, other in ENGINES.items() if not other.packages)
        lacking = f"{', '.join(missing)} is not installed here"
        raise refuse(key, name, f"{others}, or `make setup-engines` first ({lacking})")


def missing_tools(name: str) -> list[str]:
    """List tools that an engine lacks here to compile kernels for a GPU, each with its remedy."""
    if not ENGINES[name].tools:
        return []
    return importlib.import_module(ENGINES[name].tools).missing(os.environ)
