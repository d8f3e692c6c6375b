"""The roles that generate and score: rollout and teacher. Plain classes; their calls are pure in
(weights, requests, behavior), so a lost call may simply be made again.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from orchestrator.config import Setup
from orchestrator.engines.torch.causal import CausalModel
from orchestrator.engines.torch.decoding import Decoding, generate
from orchestrator.engines.torch.scoring import score
from orchestrator.experiment.methods import behavior_at
from orchestrator.policy.spec import Behavior, Student
from orchestrator.rollouts import Request, Rollouts, TeacherScores, concatenate
from orchestrator.workers.store import ModelStore


class RolloutWorker:
    """Samples training rollouts from a behavior policy of student and teacher."""

    def __init__(self, store: ModelStore):
        self._store = store

    def start(self) -> None:
        """Load the models that the unit's first step samples with."""
        unit = self._store.spec.unit
        _ = self._store.student
        if behavior_at(unit.method, unit.knobs, 0).needs_teacher:
            _ = self._store.teacher

    def load(self, weights: dict[str, Tensor]) -> None:
        """Weights of the student to sample from, by Hugging Face name."""
        self._store.load_student(weights)

    def sample(self, requests: list[Request], behavior: Behavior) -> Rollouts:
        """One response to each request; teacher scores included if the behavior needed the teacher."""
        training = self._store.spec.setup.training
        teacher = self._store.teacher if behavior.needs_teacher else None
        length = 1
        if behavior.needs_teacher:
            rows = min(len(requests), self._store.decode_batch(True, training.max_response_tokens))
            length = self._store.draft_length(behavior, rows)
        decoding = Decoding(training.max_response_tokens, support_size(self._store.spec.setup), length)
        return in_batches(self._store, self._store.student, teacher, requests, behavior, decoding)


class TeacherWorker:
    """Scores finished rollouts; answers prompts itself for the supervised stage."""

    def __init__(self, store: ModelStore):
        self._store = store

    def start(self) -> None:
        """Load the teacher."""
        _ = self._store.teacher

    def score(self, rollouts: Rollouts) -> TeacherScores:
        """The teacher's statistics at every visited prefix."""
        return score(self._store.teacher, rollouts, self._store.spec.runtime.micro_batch_tokens)

    def sample(self, requests: list[Request]) -> Rollouts:
        """Teacher responses at T = 1; its stop event is emitted as the student's EOS."""
        decoding = Decoding(self._store.spec.setup.training.max_response_tokens)
        return in_batches(self._store, self._store.teacher, None, requests, Student(), decoding)


def support_size(setup: Setup) -> int:
    """k of the top-k support; the objective `full` is on the whole vocabulary."""
    return setup.vocabulary.valid if setup.training.objective == "full" else setup.training.top_k


def in_batches(
    store: ModelStore,
    sampler: CausalModel,
    teacher: CausalModel | None,
    requests: list[Request],
    behavior: Behavior,
    decoding: Decoding,
    report: Callable[[int], None] | None = None,
) -> Rollouts:
    """`generate` over as many sequences at once as the store says fit; `report` hears how many there are by now."""
    teacher_decodes = teacher is not None or sampler.owner == "teacher"
    size = store.decode_batch(teacher_decodes, decoding.max_tokens)
    parts = []
    for start in range(0, len(requests), size):
        batch = requests[start : start + size]
        parts.append(generate(sampler, teacher, batch, behavior, decoding))
        if report is not None:
            report(start + len(batch))
    return concatenate(parts)
