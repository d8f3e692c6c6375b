"""The torch engine behind `engines.interface`: its roles share one store of models."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence

import torch

from orchestrator.engines.budget import Situation, by_kernel
from orchestrator.engines.common.causal import log_probs_of
from orchestrator.engines.common.passes import Passes
from orchestrator.engines.common.scoring import score
from orchestrator.engines.common.store import ModelStore
from orchestrator.engines.common.tensor_digests import digests_of
from orchestrator.engines.device import granted, moves_away, pass_tokens
from orchestrator.engines.interface import Job, Limits, Owner, WeightsRef
from orchestrator.engines.torch.decoding import Decoding, generate, read_in_drafts
from orchestrator.engines.torch.trainer import TorchTrainer
from orchestrator.policy.spec import Behavior
from orchestrator.rollouts import Request, Rollouts, TeacherScores

logger = logging.getLogger(__name__)


class TorchEngine:
    """Roles that share the models of one process."""

    def __init__(self, job: Job):
        self.store = ModelStore(job)

    def sampler(self, owner: Owner = "student") -> TorchSampler:
        """See `Engine.sampler`. All samplers of the student share its weights, the last loaded."""
        return TorchSampler(self.store, owner)

    def scorer(self) -> TorchScorer:
        return TorchScorer(self.store)

    def trainer(self) -> TorchTrainer:
        """A trainer with its own student in float32; the sampler's may have another dtype."""
        job = self.store.job
        there = granted(job, "learning")
        checkpointing = job.runtime.checkpointing if there is None else there.checkpointing
        return TorchTrainer(
            self.store.open(job.initial, "student", torch.float32),
            job.setup.training.optimizer,
            pass_tokens(job, "learning"),
            self.store.dtype,
            job.steps,
            moves_away(job, there),
            Passes.on(self.store.device, self.store.dtype, checkpointing),
            job.lora,
        )

    def close(self) -> None:
        """Drop the store's models; a role that is still referenced keeps them alive."""
        self.store.drop_all()


def open_engine(job: Job) -> TorchEngine:
    """The engine for a job, in this process; models are loaded when they are first needed."""
    return TorchEngine(job)


class TorchSampler:
    """Decodes as many sequences at once as fit on the device, and halves them when out of memory.

    The batch size changes no token.
    """

    def __init__(self, store: ModelStore, owner: Owner):
        self._store = store
        self._owner = owner
        self._most = sys.maxsize  # sequences at once, since memory was too small for more

    def start(self, teacher: bool) -> None:
        """Load the student, and the teacher if behaviors will need it."""
        _ = self._store.student if self._owner == "student" else self._store.teacher
        if teacher:
            _ = self._store.teacher

    def load(self, weights: WeightsRef) -> None:
        """Put these weights into the generating student."""
        self._store.load_student(weights)

    def release(self) -> None:
        """Drop the generating student, and the teacher unless it also scores."""
        self._store.drop_student()
        self._store.drop_idle_teacher()

    def log_probs(self, ids: Sequence[int]) -> list[float]:
        """log p of the ids under the generating student."""
        return log_probs_of(self._store.student, ids)

    def log_probs_each(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """`log_probs` of sequences of one length, read as drafts are."""
        return read_in_drafts(self._store.student, sequences)

    def digests(self) -> dict[str, str]:
        """Digests of all tensors of the generating student."""
        return digests_of(self._store.student.model.named_parameters())

    def _situation(self, behavior: Behavior) -> Situation:
        if behavior.needs_teacher:
            return "blending"
        if self._owner == "teacher":
            return "answering"
        return "decoding" if self._store.job.trains else "evaluating"

    def sample(
        self, requests: Sequence[Request], behavior: Behavior, limits: Limits
    ) -> Iterator[Rollouts]:
        """One response to each request, batch by batch."""
        sampler = self._store.student if self._owner == "student" else self._store.teacher
        teacher_decodes = behavior.needs_teacher or sampler.owner == "teacher"
        fitting = self._store.decode_batch(self._situation(behavior), limits.max_tokens)
        size = min(fitting, self._most)
        if limits.at_once is not None:
            size = max(1, min(size, limits.at_once))
        teacher = None
        drafted = 1
        if not teacher_decodes:
            self._store.drop_idle_teacher()  # from blended steps before this one
        if behavior.needs_teacher:
            teacher = self._store.teacher
            drafted = self._store.draft_length(behavior, min(len(requests), size))
        decoding = Decoding(limits.max_tokens, limits.support, drafted)
        left = list(requests)
        while left:
            rollouts = None
            try:
                rollouts = generate(sampler, teacher, left[:size], behavior, decoding)
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
            # Outside the handler, whose traceback would keep the tensors of the failed call alive.
            if rollouts is None:
                full = len(left) >= size
                size = max(1, min(size, len(left)) // 2)
                # A short last batch that failed says nothing about batches of the full size.
                if full:
                    self._most = size
                torch.cuda.empty_cache()
                logger.warning("not enough memory: going on with %d sequences at once", size)
                continue
            left = left[size:]
            yield rollouts


class TorchScorer:
    """Scores with the teacher of the store."""

    def __init__(self, store: ModelStore):
        self._store = store

    def start(self) -> None:
        """Load the teacher."""
        _ = self._store.teacher

    def score(self, rollouts: Rollouts) -> TeacherScores:
        """The teacher's statistics at every visited prefix."""
        job = self._store.job
        kernel = by_kernel(job.runtime, job.setup)
        return score(self._store.teacher, rollouts, pass_tokens(job, "scoring"), kernel=kernel)
