"""The role that trains the student."""

from __future__ import annotations

from pathlib import Path

from orchestrator.engines.interface import WeightsRef
from orchestrator.policy.spec import Objective
from orchestrator.records.files import pretty
from orchestrator.records.rundir import CANARY
from orchestrator.rollouts import Rollouts, TeacherScores
from orchestrator.workers.canary import canary, canary_ids
from orchestrator.workers.engines import Engines
from orchestrator.workers.spec import WorkerSpec


class LearnerWorker:
    """A student in training. Its calls change state: a lost learner is rebuilt from the last checkpoint."""

    def __init__(self, spec: WorkerSpec, engines: Engines):
        self._trainer = engines.trainer()
        self._canary_ids = canary_ids(spec.setup)

    def start(self) -> None:
        """Nothing more: the student is there once the worker is."""

    def step(self, rollouts: Rollouts, scores: TeacherScores | None, goal: Objective, step: int) -> dict[str, float]:
        """One update, towards `scores` or those that came with the rollouts; see `Trainer.step`."""
        return self._trainer.step(rollouts, scores or rollouts.teacher, goal, step)

    def publish(self, step: int) -> WeightsRef:
        """What the rollout role loads."""
        return self._trainer.publish(step)

    def save(self, folder: str) -> None:
        """Model in Hugging Face layout, and beside it the learner's state and what tells these weights from others."""
        self._trainer.export(Path(folder))
        log_probs = self._trainer.log_probs(self._canary_ids)
        (Path(folder) / CANARY).write_text(pretty(canary(self._canary_ids, log_probs)), encoding="utf-8")
        self._trainer.save(Path(folder))

    def restore(self, folder: str) -> None:
        """Go on from what `save` wrote."""
        self._trainer.restore(Path(folder))
