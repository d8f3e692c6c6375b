"""The roles that generate and score: rollout and teacher. Their calls are pure in (weights, requests, behavior), so a
lost call may simply be made again.
"""

from __future__ import annotations

from orchestrator.config import Setup
from orchestrator.engines.interface import Limits, WeightsRef
from orchestrator.experiment.methods import behavior_at
from orchestrator.policy.spec import Behavior, Student
from orchestrator.rollouts import Request, Rollouts, TeacherScores, concatenate
from orchestrator.workers.digests import RolloutDigest, ScoresDigest, digest_rollouts, digest_scores
from orchestrator.workers.engines import Engines
from orchestrator.workers.spec import WorkerSpec


class RolloutWorker:
    """Samples training rollouts from a behavior policy of student and teacher."""

    def __init__(self, spec: WorkerSpec, engines: Engines):
        self._spec = spec
        self._sampler = engines.sampler()

    def start(self) -> None:
        """Load the models that the unit's first step samples with."""
        unit = self._spec.unit
        self._sampler.start(teacher=behavior_at(unit.method, unit.knobs, 0).needs_teacher)

    def load(self, weights: WeightsRef) -> None:
        """Sample from these weights of the student from now on."""
        self._sampler.load(weights)

    def sample(self, requests: list[Request], behavior: Behavior) -> tuple[Rollouts, RolloutDigest]:
        """One response to each request; teacher scores included if the behavior needed the teacher."""
        limits = Limits(self._spec.setup.training.max_response_tokens, support_size(self._spec.setup))
        rollouts = concatenate(list(self._sampler.sample(requests, behavior, limits)))
        return rollouts, digest_rollouts(rollouts)


class TeacherWorker:
    """Scores finished rollouts; answers prompts itself for the supervised stage."""

    def __init__(self, spec: WorkerSpec, engines: Engines):
        self._spec = spec
        self._scorer = engines.scorer()
        self._engines = engines

    def start(self) -> None:
        """Load the teacher."""
        self._scorer.start()

    def score(self, rollouts: Rollouts) -> tuple[TeacherScores, ScoresDigest]:
        """The teacher's statistics at every visited prefix."""
        scores = self._scorer.score(rollouts)
        return scores, digest_scores(rollouts, scores)

    def sample(self, requests: list[Request]) -> tuple[Rollouts, RolloutDigest]:
        """Teacher responses at T = 1; its stop event is emitted as the student's EOS."""
        limits = Limits(self._spec.setup.training.max_response_tokens)
        rollouts = concatenate(list(self._engines.answering_teacher().sample(requests, Student(), limits)))
        return rollouts, digest_rollouts(rollouts)


def support_size(setup: Setup) -> int:
    """k of the top-k support; the objective `full` is on the whole vocabulary."""
    return setup.vocabulary.valid if setup.training.objective == "full" else setup.training.top_k
