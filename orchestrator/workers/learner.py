"""The role that trains the student."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from orchestrator.engines.torch.learner import TorchLearner
from orchestrator.policy.spec import Objective
from orchestrator.rollouts import Rollouts, TeacherScores
from orchestrator.workers.store import ModelStore


class LearnerWorker:
    """A student in training. Its calls change state: a lost learner is rebuilt from the last checkpoint."""

    def __init__(self, store: ModelStore):
        spec = store.spec
        master = store.open(spec.initial, "student", torch.float32)
        optimizer, micro_batch_tokens = spec.setup.training.optimizer, spec.runtime.micro_batch_tokens
        self._engine = TorchLearner(master, optimizer, micro_batch_tokens, store.dtype, spec.unit.steps)

    def start(self) -> None:
        """Nothing more: the student is there once the worker is."""

    def step(self, rollouts: Rollouts, scores: TeacherScores | None, goal: Objective, step: int) -> dict[str, float]:
        """One update; see `TorchLearner.step`."""
        return self._engine.step(rollouts, scores, goal, step)

    def weights(self) -> dict[str, Tensor]:
        """What the rollout and evaluation roles load."""
        return self._engine.weights()

    def save(self, folder: str) -> None:
        """Model in Hugging Face layout, and the learner's state beside it."""
        self._engine.save_model(Path(folder))
        self._engine.save_state(Path(folder))

    def restore(self, folder: str) -> None:
        """Go on from what `save` wrote."""
        self._engine.load_state(Path(folder))
