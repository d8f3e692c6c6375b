"""Which engines exist and what each can do. Nothing here loads one. No torch.

Their names stand here, in `config.EngineName` and `TrainerName`, and with what they cost in `planning.rates`; nowhere
else.
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
from orchestrator.errors import refuse
from orchestrator.start_up import quick_imports

Role = Literal["sampler", "scorer", "trainer"]
LONGEST_ROUND = 16  # γ of the longest round of an engine that keeps room for it beside each request


@dataclass(frozen=True)
class EngineInfo:
    """What an engine can do.

    `blends`: it can sample from behaviors that need the teacher. `keyed`: a call that is made again, in any process and
    any batch, gives the same bytes; otherwise samples of the same law. `module` has a function `open_engine(job)`.
    `packages` are those that it imports and that the default install lacks; without them it is planned with alone. The
    roles that `spread` can use several GPUs at once: a sampler shares out each layer by heads, scorer and trainer shard
    parameters; the others use one device. A sampler that is `pooled` keeps one KV cache of a fixed number of tokens, in
    processes of its own; the others make caches for each batch. `tools` is a module for an engine that compiles kernels
    when it first needs them: its function `missing(environ)` says what that lacks on a machine with a GPU.
    `longest_draft` is the largest γ that it can be set to; None where all are possible.
    """

    roles: frozenset[Role]
    blends: bool
    keyed: bool
    module: str
    packages: tuple[str, ...] = ()
    pooled: bool = False
    spread: frozenset[Role] = frozenset()
    tools: str = ""
    longest_draft: int | None = None


ENGINES: Mapping[str, EngineInfo] = MappingProxyType(
    {
        "torch": EngineInfo(
            roles=frozenset({"sampler", "scorer", "trainer"}),
            blends=True,
            keyed=True,
            module="orchestrator.engines.torch.engine",
        ),
        "sglang": EngineInfo(
            roles=frozenset({"sampler"}),
            blends=True,
            keyed=False,
            module="orchestrator.engines.sglang.blending",
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


def able(*roles: Role) -> list[str]:
    """The engines that can play all of these roles."""
    return [name for name, info in ENGINES.items() if info.roles >= set(roles)]


def spreading(*roles: Role) -> list[str]:
    """The engines that can use several GPUs for all of these roles."""
    return [name for name, info in ENGINES.items() if info.spread >= set(roles)]


def sampler_of(chosen: str, teacher_decodes: bool) -> str:
    """The engine that samples where `chosen` is configured: one that blends where that one cannot and has to."""
    if ENGINES[chosen].blends or not teacher_decodes:
        return chosen
    return next(name for name in able("sampler") if ENGINES[name].blends)


def open_engine(name: str, job: Job) -> Engine:
    """The engine of that name, opened in this process; its libraries are imported here and not before."""
    require("engine", name)
    with quick_imports():
        opener: OpenEngine = importlib.import_module(ENGINES[name].module).open_engine
    return opener(job)


def require_all(engine: config.Engine) -> None:
    """Raise UserError on the first engine of a setup that nothing can be run with here."""
    require("engine.sampler", engine.sampler)
    require("engine.trainer", engine.trainer)


def require(key: str, name: str) -> None:
    """Raise UserError that names `key` where its engine can be planned with, and nothing can be run with it here."""
    info = ENGINES[name]
    missing = [package for package in info.packages if importlib.util.find_spec(package) is None]
    if missing:
        others = " or ".join(engine for engine, other in ENGINES.items() if not other.packages)
        raise refuse(key, name, f"`make setup-engines` first ({', '.join(missing)} is not installed here), or {others}")


def missing_tools(name: str) -> list[str]:
    """Name each thing that an engine lacks here to compile kernels for a GPU, in a line with its remedy."""
    if not ENGINES[name].tools:
        return []
    return importlib.import_module(ENGINES[name].tools).missing(os.environ)
