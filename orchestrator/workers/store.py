"""The models one process holds, loaded when first needed and shared by the roles that live in it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from orchestrator.engines import memory
from orchestrator.engines.interface import ModelFolder, Owner
from orchestrator.engines.torch.causal import CausalModel, best_device, load_model
from orchestrator.errors import UserError
from orchestrator.policy.draft_length import draft_length
from orchestrator.policy.spec import Behavior
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.records.files import verify_files
from orchestrator.workers.spec import WorkerSpec

# Positions whose arithmetic takes as long as reading the weights, in bfloat16: FLOP/s ÷ bytes/s of an H100.
BALANCED_ROWS = 300


class ModelStore:
    """Student (in the weights of the last `load_student`) and teacher of one process."""

    def __init__(self, spec: WorkerSpec, initial_owner: Owner = "student"):
        torch.set_num_threads(1)
        self.spec = spec
        self._initial_owner: Owner = initial_owner  # whose stop id the initial model uses
        self.device = best_device()
        self.dtype = torch.float32 if spec.setup.engine.dtype == "float32" else torch.bfloat16
        self._student: CausalModel | None = None
        self._teacher: CausalModel | None = None

    @property
    def student(self) -> CausalModel:
        """The student that generates; untrained until weights are loaded."""
        if self._student is None:
            self._student = self.open(self.spec.initial, self._initial_owner, self.dtype)
        return self._student

    @property
    def teacher(self) -> CausalModel:
        if self._teacher is None:
            self._teacher = self.open(self.spec.teacher, "teacher", self.dtype)
        return self._teacher

    def open(self, checkpoint: ModelFolder, owner: Owner, dtype: torch.dtype) -> CausalModel:
        """A fresh copy of a model, checked against its known files and the setup's vocabulary."""
        setup = self.spec.setup
        verify_files(Path(checkpoint.path), checkpoint.files, checkpoint.remedy)
        model = load_model(checkpoint.path, dtype, self.device)
        if model.config.vocab_size != setup.vocabulary.size:
            raise UserError(
                f"{owner} {checkpoint.path}: {model.config.vocab_size} vocabulary rows — "
                f"the setup declares {setup.vocabulary.size}; student and teacher must share one vocabulary"
            )
        opened = CausalModel(model, token_space(self.spec), owner)
        _first_pass(opened)
        return opened

    def load_student(self, weights: dict[str, Tensor]) -> None:
        """Put new weights into the generating student."""
        own = dict(self.student.model.named_parameters())
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(tensor)

    def decode_batch(self, blending: bool, max_tokens: int) -> int:
        """Sequences decoded at once on this process's device; see `memory.decode_batch`."""
        spec = self.spec
        trains = spec.unit.kind != "base_eval"
        return memory.decode_batch(spec.setup, spec.runtime, memory_gib(self.device), blending, max_tokens, trains)

    def draft_length(self, behavior: Behavior, rows: int) -> int:
        """γ for `rows` decoded at once: the configured one, or what suits the behavior, the models and the device.

        Decoding reads all parameters, so their ratio is what a teacher pass costs in student passes. On CPUs it is
        calls and not arithmetic that small models spend their time on.
        """
        sizes = [sum(p.numel() for p in causal.model.parameters()) for causal in (self.teacher, self.student)]
        arithmetic = rows / BALANCED_ROWS if self.device.type == "cuda" else 0.0
        suggested = draft_length(behavior.acceptance_guess, sizes[0] / sizes[1], arithmetic)
        return self.spec.runtime.draft_length or suggested


def _first_pass(causal: CausalModel) -> None:
    """One token through the model: what libraries set up at their first call belongs to loading, not to a step."""
    token = torch.zeros(1, 1, dtype=torch.long, device=causal.device)
    with torch.no_grad():
        causal.head(causal.hidden(token, torch.ones_like(token)))


def memory_gib(device: torch.device) -> float | None:
    """Memory of a GPU in GiB; None on CPUs."""
    return torch.cuda.get_device_properties(device).total_memory / memory.GIB if device.type == "cuda" else None


def token_space(spec: WorkerSpec) -> TokenSpace:
    """The token space both models of a setup share."""
    setup = spec.setup
    return TokenSpace(setup.vocabulary.valid, setup.student.eos, setup.teacher.eos)


def open_tokenizer(spec: WorkerSpec) -> PreTrainedTokenizerBase:
    """The one tokenizer of a setup: the teacher's."""
    known = {name: sha256 for name, sha256 in spec.teacher.files.items() if name.startswith("tokenizer")}
    verify_files(Path(spec.teacher.path), known, spec.teacher.remedy)
    return AutoTokenizer.from_pretrained(spec.teacher.path, trust_remote_code=False)
