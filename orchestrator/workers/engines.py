"""The engines of one process, each opened when a role that needs it first comes up."""

from __future__ import annotations

from orchestrator.engines.catalog import open_engine
from orchestrator.engines.interface import Engine, Job, Sampler, Scorer, Trainer
from orchestrator.workers.spec import WorkerSpec


class Engines:
    """What plays the roles of a trial in this process. Roles of one engine share what it holds."""

    def __init__(self, spec: WorkerSpec):
        self._spec = spec
        self._opened: dict[str, Engine] = {}

    def sampler(self) -> Sampler:
        """The student, sampling."""
        return self._engine(self._spec.setup.engine.rollout).sampler()

    def answering_teacher(self) -> Sampler:
        """The teacher, answering prompts itself."""
        return self._engine(self._spec.setup.engine.rollout).sampler("teacher")

    def scorer(self) -> Scorer:
        """The teacher, scoring; it reads prefixes as training does, so the learner's engine has it."""
        return self._engine(self._spec.setup.engine.learner).scorer()

    def trainer(self) -> Trainer:
        """The student in training."""
        return self._engine(self._spec.setup.engine.learner).trainer()

    def _engine(self, name: str) -> Engine:
        if name not in self._opened:
            self._opened[name] = open_engine(name, job_of(self._spec))
        return self._opened[name]


def job_of(spec: WorkerSpec) -> Job:
    """What a unit's engines are opened for."""
    return Job(spec.setup, spec.runtime, spec.initial, spec.teacher, spec.unit.steps)
