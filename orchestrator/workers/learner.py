"""The role that trains the student."""

from __future__ import annotations

import functools
from pathlib import Path

from orchestrator.engines.interface import WeightsRef
from orchestrator.engines.tokenizer import open_tokenizer
from orchestrator.policy.spec import Objective
from orchestrator.records.files import pretty
from orchestrator.records.rundir import CANARY
from orchestrator.rollouts import Rollouts, TeacherScores
from orchestrator.workers.canary import canary, canary_sequences
from orchestrator.workers.engines import Engines
from orchestrator.workers.spec import WorkerSpec


class LearnerWorker:
    """A student in training. Calls change it; a lost one is rebuilt from the last checkpoint."""

    def __init__(self, spec: WorkerSpec, engines: Engines):
        self._spec = spec
        self._trainer = engines.trainer()

    @functools.cached_property
    def _canary_sequences(self) -> list[list[int]]:
        return canary_sequences(self._spec.setup, open_tokenizer(self._spec.teacher))

    def start(self) -> None:
        """Do nothing: the constructor has loaded the student."""

    def step(
        self, rollouts: Rollouts, scores: TeacherScores | None, goal: Objective, step: int
    ) -> dict[str, float]:
        """Make one update, towards `scores` or the rollouts' own scores; see `Trainer.step`."""
        return self._trainer.step(rollouts, scores or rollouts.teacher, goal, step)

    def publish(self, step: int) -> WeightsRef:
        """The weights after `step` steps, for the rollout role."""
        return self._trainer.publish(step)

    def save(self, folder: str) -> None:
        """Write the model in Hugging Face layout, its canary, and the learner's state."""
        tensors = self._trainer.export(Path(folder))
        sequences = self._canary_sequences
        log_probs = [self._trainer.log_probs(ids) for ids in sequences]
        written = canary(sequences, log_probs, tensors)
        (Path(folder) / CANARY).write_text(pretty(written), encoding="utf-8")
        self._trainer.save(Path(folder))

    def restore(self, folder: str) -> None:
        """Continue from the files that `save` wrote."""
        self._trainer.restore(Path(folder))
