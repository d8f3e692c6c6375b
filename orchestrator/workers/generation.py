"""The roles that generate and score: rollout and teacher.

Their calls are pure in (weights, requests, behavior): a lost call may be repeated.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from orchestrator.config import Setup
from orchestrator.engines.interface import Limits, Sampler, Scorer, WeightsRef
from orchestrator.experiment.methods import behavior_at
from orchestrator.policy.randomness import Role, uniforms
from orchestrator.policy.spec import Behavior, Student, TeacherSequences
from orchestrator.rollouts import Request, Rollouts, TeacherScores, concatenate, in_order
from orchestrator.workers.digests import RolloutDigest, ScoresDigest, digest_rollouts, digest_scores
from orchestrator.workers.engines import Engines
from orchestrator.workers.spec import WorkerSpec


class RolloutWorker:
    """Samples training rollouts from a behavior policy of student and teacher.

    If the setup's sampler cannot blend, another engine samples the blended steps. Only one of the
    two is up at a time: both would share a GPU with teacher and learner, and a method goes from
    blended to plain steps only once.
    """

    def __init__(self, spec: WorkerSpec, engines: Engines):
        self._spec = spec
        self._engines = engines
        self._name: str | None = None  # of the engine that is up
        self._sampler: Sampler | None = None  # on that engine
        self._weights: WeightsRef | None = None  # to sample from
        self._loaded: WeightsRef | None = None  # in the sampler now

    def start(self, step: int) -> None:
        """Load the models from which step `step` samples."""
        unit = self._spec.unit
        behavior = behavior_at(unit.method, unit.knobs, step)
        self._sampler_for(behavior).start(teacher=behavior.needs_teacher)

    def load(self, weights: WeightsRef) -> None:
        """Sample from these student weights from now on; the next call of `sample` loads them."""
        self._weights = weights

    def sample(
        self,
        requests: list[Request],
        behavior: Behavior,
        max_tokens: int | None = None,
        traced: int = 0,
        scored: bool = False,
    ) -> tuple[Rollouts, RolloutDigest]:
        """One response to each request, of at most `max_tokens` or the setup's limit.

        Teacher scores are included if the behavior needed the teacher, and if the rollouts shall be
        `scored`: the teacher of this process then scores each part while a sampler in another
        process goes on with the rest. The digest has the first `traced` responses token by token.
        """
        sampler = self._sampler_for(behavior)
        if self._weights is not None and self._loaded is not self._weights:
            # First, since an engine for other behaviors is ended, with its weights.
            sampler.start(teacher=behavior.needs_teacher)
            sampler.load(self._weights)
            self._loaded = self._weights
        longest = max_tokens or self._spec.setup.training.max_response_tokens
        limits = Limits(longest, support_size(self._spec.setup))
        parts: list[Rollouts] = []
        for each, some in by_behavior(requests, behavior).items():
            for part in sampler.sample(some, each, limits):
                if scored and part.teacher is None:
                    part = replace(part, teacher=self._scorer.score(part))
                parts.append(part)
        rollouts = in_order(concatenate(parts), requests)
        return rollouts, digest_rollouts(rollouts, traced)

    @functools.cached_property
    def _scorer(self) -> Scorer:
        return self._engines.scorer()

    def _sampler_for(self, behavior: Behavior) -> Sampler:
        """The sampler on the engine for a behavior; releases the one on another engine."""
        name = self._engines.sampler_name(behavior)
        if self._sampler is not None and self._name != name:
            self._sampler.release()
            self._sampler = self._loaded = None
        if self._sampler is None:
            self._sampler = self._engines.sampler(name)
            self._name = name
        return self._sampler


class TeacherWorker:
    """Scores finished rollouts; answers prompts itself for the supervised stage."""

    def __init__(self, spec: WorkerSpec, engines: Engines):
        self._spec, self._engines = spec, engines

    @functools.cached_property
    def _scorer(self) -> Scorer:
        return self._engines.scorer()

    @functools.cached_property
    def _answering(self) -> Sampler:
        return self._engines.answering_teacher()

    def start(self) -> None:
        """Load the teacher: the answering one for the supervised stage, else the scoring one."""
        if self._spec.unit.is_supervised:
            self._answering.start(teacher=False)
        else:
            self._scorer.start()

    def score(self, rollouts: Rollouts) -> tuple[TeacherScores, ScoresDigest]:
        """The teacher's statistics at every visited prefix."""
        scores = self._scorer.score(rollouts)
        return scores, digest_scores(rollouts, scores)

    def sample(self, requests: list[Request], traced: int = 0) -> tuple[Rollouts, RolloutDigest]:
        """Teacher responses at T = 1; its stop event is emitted as the student's EOS."""
        limits = Limits(self._spec.setup.training.max_response_tokens)
        # `Student()`: the plain law of the sampling model, which is the teacher here.
        parts = list(self._answering.sample(requests, Student(), limits))
        rollouts = in_order(concatenate(parts), requests)
        return rollouts, digest_rollouts(rollouts, traced)


def by_behavior(requests: list[Request], behavior: Behavior) -> dict[Behavior, list[Request]]:
    """The requests by the behavior that samples them: all by one, unless it mixes sequences."""
    if not isinstance(behavior, TeacherSequences):
        return {behavior: requests}
    drawn = uniforms([request.key for request in requests], Role.SEQUENCE, 1)[:, 0].tolist()
    parts: dict[Behavior, list[Request]] = {}
    for request, uniform in zip(requests, drawn, strict=True):
        parts.setdefault(behavior.of(uniform), []).append(request)
    return parts


def support_size(setup: Setup) -> int:
    """k of the top-k support; the whole vocabulary for the objective `full`."""
    return setup.vocabulary.valid if setup.training.objective == "full" else setup.training.top_k
