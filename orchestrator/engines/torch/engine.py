"""The torch engine behind `engines.interface`: its roles share one store of models.

Models are loaded when first needed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from orchestrator.engines import memory
from orchestrator.engines.budget import Situation
from orchestrator.engines.common.causal import (
    CausalModel,
    best_device,
    checked_model,
    load_model,
    log_probs_of,
)
from orchestrator.engines.common.passes import Passes
from orchestrator.engines.common.scoring import score
from orchestrator.engines.common.tensor_digests import digests_of
from orchestrator.engines.device import granted, moves_away, pass_tokens
from orchestrator.engines.interface import Job, Limits, ModelFolder, Owner, WeightsRef
from orchestrator.engines.memory import by_kernel, longest_round
from orchestrator.engines.torch.decoding import Decoding, generate, read_in_drafts
from orchestrator.engines.torch.trainer import TorchTrainer
from orchestrator.liveness import heartbeat
from orchestrator.policy.spec import Behavior, arithmetic_cost, draft_length
from orchestrator.rollouts import Request, Rollouts, TeacherScores

logger = logging.getLogger(__name__)


class ModelStore:
    """Student (in the weights of the last `load_student`) and teacher of one process."""

    def __init__(self, job: Job):
        # Trials run beside each other, and the order of a sum must not depend on a machine's cores.
        torch.set_num_threads(1)
        self.job = job
        self.device = best_device()
        self._share = job.runtime.placement.gpu_share
        if self.device.type == "cuda" and self._share < 1:  # the rest belongs to another trial
            torch.cuda.set_per_process_memory_fraction(self._share, self.device)
        self.dtype = torch.float32 if job.setup.engine.dtype == "float32" else torch.bfloat16
        self._student: CausalModel | None = None
        self._teacher: CausalModel | None = None
        # Whether this engine's teacher also scores rollouts, and thus has work in every step.
        self._scores = job.setup.engine.trainer == "torch"

    @property
    def student(self) -> CausalModel:
        """The student that generates; untrained until weights are loaded."""
        if self._student is None:
            self._student = self.open(self.job.initial, self.job.stops_as, self.dtype)
        return self._student

    @property
    def teacher(self) -> CausalModel:
        if self._teacher is None:
            self._teacher = self.open(self.job.folder("teacher"), "teacher", self.dtype)
        return self._teacher

    def open(self, folder: ModelFolder, owner: Owner, dtype: torch.dtype) -> CausalModel:
        """A fresh copy of a model on this store's device; see `checked_model`."""
        with heartbeat.loading():
            opened = checked_model(self.job.setup, folder, owner, dtype, self.device)
            _first_pass(opened)
        return opened

    def load_student(self, weights: WeightsRef) -> None:
        """Put new weights into the generating student."""
        parameters = dict(self.student.model.named_parameters())
        tensors = _tensors(weights)
        if isinstance(weights.place, Path) and not parameters.keys() <= tensors.keys():
            # Files name some parameters otherwise, such as experts one by one.
            opened = load_model(str(weights.place), self.dtype, torch.device("cpu"))
            tensors = dict(opened.named_parameters())
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors[name])

    def drop_student(self) -> None:
        """Release the generating student's memory; its next use opens it in its initial weights."""
        self._student = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def drop_idle_teacher(self) -> None:
        """Release the teacher's memory if another engine scores; decoding opens it again."""
        if not self._scores and self._teacher is not None:
            self._teacher = None
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def drop_all(self) -> None:
        """Release the memory of both models."""
        self._teacher = None
        self.drop_student()

    def decode_batch(self, situation: Situation, max_tokens: int) -> int:
        """Sequences decoded at once on this device: the configured number, else one that fits."""
        if self.job.runtime.rollout_batch is not None:
            return self.job.runtime.rollout_batch
        there = granted(self.job, situation, max_tokens)
        return memory.CPU_BATCH if there is None else there.requests

    def draft_length(self, behavior: Behavior, rows: int) -> int:
        """γ for `rows` decoded at once: the configured one, else by behavior, models and device."""
        on_gpu = self.device.type == "cuda"
        # Decoding reads all parameters, so the ratio of their numbers is the cost of a pass of the
        # teacher in passes of the student.
        cost_ratio = _parameters(self.teacher) / _parameters(self.student)
        suggested = draft_length(
            behavior.acceptance_guess, cost_ratio, arithmetic_cost(rows, on_gpu)
        )
        drafted = self.job.runtime.draft_length or suggested
        return min(drafted, longest_round(self.job.setup, rows)) if on_gpu else drafted


def _parameters(causal: CausalModel) -> int:
    return sum(parameter.numel() for parameter in causal.model.parameters())


def _tensors(weights: WeightsRef) -> Mapping[str, Tensor]:
    """Tensors by name: from all parts of a model folder, or from the reference itself."""
    if not isinstance(weights.place, Path):
        return weights.place
    tensors: dict[str, Tensor] = {}
    for file in sorted(weights.place.glob("model*.safetensors")):
        tensors |= load_file(file)
    return tensors


def _first_pass(causal: CausalModel) -> None:
    """Run one token through the model, so that libraries' first-call set-up counts as loading."""
    token = torch.zeros(1, 1, dtype=torch.long, device=causal.device)
    with torch.no_grad():
        causal.head(causal.hidden(token, torch.ones_like(token)))


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
