"""The engines of one process, each opened when a role first needs it."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from orchestrator.config import Setup
from orchestrator.engines.catalog import open_engine, sampler_of
from orchestrator.engines.common.causal import open_tokenizer
from orchestrator.engines.device import hide_gpus
from orchestrator.engines.interface import (
    Engine,
    Job,
    Limits,
    Lora,
    Sampler,
    Scorer,
    Trainer,
    WeightsRef,
)
from orchestrator.engines.memory import Gpus, Situation
from orchestrator.experiment.methods import behavior_at, needs_teacher
from orchestrator.experiment.units import Unit
from orchestrator.policy.randomness import Role, uniforms
from orchestrator.policy.spec import Behavior, Objective, Student, TeacherSequences
from orchestrator.records.files import pretty
from orchestrator.records.log import HeldOut
from orchestrator.records.rundir import CANARY
from orchestrator.rollouts import Request, Rollouts, TeacherScores, concatenate, in_order
from orchestrator.rules import RoleName
from orchestrator.workers.canary import canary, canary_sequences
from orchestrator.workers.digests import (
    RolloutDigest,
    ScoresDigest,
    digest_held_out,
    digest_rollouts,
    digest_scores,
)
from orchestrator.workers.spec import WorkerSpec, ranks


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
    if not unit.is_supervised or "rank" not in unit.knobs:
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


# --- the roles that generate and score: rollout and teacher ---
#
# Their calls are pure in (weights, requests, behavior): a lost call may be repeated.


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


# --- the role that trains the student ---


class LearnerWorker:
    """A student in training. Calls change it; a lost one is rebuilt from the last checkpoint."""

    def __init__(self, spec: WorkerSpec, engines: Engines):
        self._spec, self._engines = spec, engines

    @functools.cached_property
    def _trainer(self) -> Trainer:
        return self._engines.trainer()

    @functools.cached_property
    def _canary_sequences(self) -> list[list[int]]:
        return canary_sequences(self._spec.setup, open_tokenizer(self._spec.teacher))

    def start(self) -> None:
        """Load the student."""
        _ = self._trainer

    def step(
        self, rollouts: Rollouts, scores: TeacherScores | None, goal: Objective, step: int
    ) -> dict[str, float]:
        """Make one update, towards `scores` or the rollouts' own scores; see `Trainer.step`."""
        return self._trainer.step(rollouts, scores or rollouts.teacher, goal, step)

    def held_out(self, rollouts: Rollouts, scores: TeacherScores, step: int) -> HeldOut:
        """The distance from the teacher's `scores` after `step` steps, read by the student itself."""
        return digest_held_out(rollouts, self._trainer.score(rollouts), scores, step)

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

    def save_state(self, folder: str) -> None:
        """Write the learner's state alone, for a kill between two checkpoints."""
        self._trainer.save(Path(folder))

    def restore(self, folder: str) -> None:
        """Continue from the learner's state that `save` or `save_state` wrote."""
        self._trainer.restore(Path(folder))
