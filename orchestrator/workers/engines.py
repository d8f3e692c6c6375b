"""The engines of one process, each opened when a role first needs it."""

from __future__ import annotations

from orchestrator.config import RoleName
from orchestrator.engines.catalog import open_engine, sampler_of
from orchestrator.engines.device import hide_gpus
from orchestrator.engines.interface import Engine, Job, Lora, Sampler, Scorer, Trainer
from orchestrator.engines.memory import Gpus, Situation
from orchestrator.experiment.methods import needs_teacher
from orchestrator.experiment.units import Unit
from orchestrator.policy.spec import Behavior
from orchestrator.workers.placement import ranks
from orchestrator.workers.spec import WorkerSpec


class Engines:
    """The engines behind a trial's roles in this process. Roles on one engine share its models."""

    def __init__(self, spec: WorkerSpec):
        if not spec.unit.placement.gpus:
            hide_gpus()
        self._spec = spec
        self._opened: dict[str, Engine] = {}

    def sampler_name(self, behavior: Behavior) -> str:
        """The engine that samples from a behavior: the setup's, unless it cannot blend but must."""
        return sampler_of(self._spec.setup.engine.sampler, behavior.needs_teacher)

    def sampler(self, name: str) -> Sampler:
        """The student, sampling on the engine of that name."""
        return self._engine(name, "rollout").sampler()

    def answering_teacher(self) -> Sampler:
        """The teacher, answering prompts itself."""
        return self._engine(self._spec.setup.engine.sampler, "teacher").sampler("teacher")

    def scorer(self) -> Scorer:
        """The teacher, scoring: on the trainer's engine, since it reads prefixes as training does."""
        return self._engine(self._spec.setup.engine.trainer, "teacher").scorer()

    def trainer(self) -> Trainer:
        """The student in training."""
        return self._engine(self._spec.setup.engine.trainer, "learner").trainer()

    def close(self) -> None:
        """Close all engines."""
        for engine in self._opened.values():
            engine.close()
        self._opened.clear()

    def _engine(self, name: str, role: RoleName) -> Engine:
        if name not in self._opened:  # roles of one process have the same GPUs, and share one job
            self._opened[name] = open_engine(name, job_of(self._spec, role))
        return self._opened[name]


def lora_of(unit: Unit) -> Lora | None:
    """The adapters that a supervised stage trains; None for a stage of all weights, and for trials."""
    if not unit.is_supervised or not unit.knobs:
        return None
    rank = unit.knobs["rank"]
    return Lora(rank, alpha=rank, lr=unit.knobs["lr"], seed=unit.seed)


def sampling_of(unit: Unit) -> tuple[Situation, ...]:
    """The situations in which a unit samples while it trains (`engines.budget`)."""
    if unit.is_supervised:
        return ("answering",)
    blends = {needs_teacher(unit.method, unit.knobs, step) for step in range(unit.steps)}
    return tuple("blending" if each else "decoding" for each in sorted(blends))


def job_of(spec: WorkerSpec, role: RoleName = "rollout") -> Job:
    """The job for which a unit's engines are opened in the process of `role`."""
    unit = spec.unit
    return Job(
        spec.setup,
        spec.runtime,
        spec.initial,
        spec.teacher,
        unit.steps,
        ranks=ranks(unit.placement, role),
        on=Gpus.of(unit.placement, role),
        takes_turns=unit.placement.takes_turns,
        lora=lora_of(unit),
        sampling=sampling_of(unit),
        shortages=spec.shortages,
    )
