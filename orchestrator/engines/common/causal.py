"""A transformers causal language model behind the few operations the engines need; its tokenizer.

Shapes: B sequences, L positions, N response tokens (flattened), V vocabulary rows, H hidden.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from orchestrator.config import Setup
from orchestrator.engines.common.learning import head_logits
from orchestrator.engines.common.passes import READS_PACKED, Inputs, attention_for, fuse_norms
from orchestrator.engines.interface import ModelFolder, Owner
from orchestrator.errors import UserError
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.records.files import verify_files

COMPUTED = ("inv_freq", "masked_bias", "position_ids")  # files of old versions keep these buffers


@dataclass
class CausalModel:
    """A model with the token space that canonicalises its probabilities."""

    model: Any  # PreTrainedModel; its forward signature is dynamic
    space: TokenSpace
    owner: Owner
    # Whether logits are float32 at least; else they have the dtype of the model (`head_dtype`).
    precise_head: bool = True

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def head_weight(self) -> Tensor:
        """The LM head (rows, H), whose product with `hidden` are the logits."""
        return self.model.get_output_embeddings().weight

    def log_prob(self, logits: Tensor) -> Tensor:
        """Canonical log-probabilities, (…, rows) → (…, V), float32 or better."""
        return canonical(self.space, self.owner, logits)

    def hidden(self, ids: Tensor, attention: Any, **options: Any) -> Tensor:
        """States (B, L, H) for the head, of right-padded rows, or of sequences packed into one.

        `options` are those of transformers: bounds of packed sequences, or a cache to use.
        """
        options = {"use_cache": False} | options
        hidden = self.model.base_model(
            input_ids=ids, attention_mask=attention, **options
        ).last_hidden_state
        scale = logit_scale(self.model.config)
        return hidden if scale == 1 else hidden * scale

    def predicting(self, inputs: Inputs) -> Tensor:
        """States (N, H) for the head that predict the response tokens."""
        # Any other attention would ignore the bounds and let sequences read one another.
        assert not inputs.packing or self.model.config._attn_implementation in READS_PACKED
        hidden = self.hidden(inputs.ids, inputs.attention, **inputs.packing)
        return hidden[inputs.rows, inputs.columns]

    def head(self, hidden: Tensor) -> Tensor:
        """Logits (…, rows) of `hidden` (…, H)."""
        if self.precise_head:
            head = self.model.get_output_embeddings()
            return head_logits(hidden, head.weight, getattr(head, "bias", None))
        return self.model.get_output_embeddings()(hidden)


def canonical(space: TokenSpace, owner: Owner, logits: Tensor) -> Tensor:
    """Log-probabilities of a student or a teacher in their shared space: (…, rows) → (…, V)."""
    return space.student_log_prob(logits) if owner == "student" else space.teacher_log_prob(logits)


def logit_scale(config: Any) -> float:
    """The factor by which a model multiplies the head's product: Cohere's, or Granite's divisor."""
    return float(getattr(config, "logit_scale", 1.0)) / getattr(config, "logits_scaling", 1.0)


@torch.no_grad()
def log_probs_of(causal: CausalModel, ids: Sequence[int]) -> list[float]:
    """log p of each id but the first given its predecessors."""
    row = torch.tensor([list(ids)], device=causal.device)
    hidden = causal.hidden(row, torch.ones_like(row))[0]
    # Position i predicts id i + 1, so that the last position is not read.
    log_p = causal.log_prob(causal.head(hidden[:-1]))
    return log_p.gather(-1, row[0, 1:, None])[:, 0].tolist()


def checked_model(
    setup: Setup,
    folder: ModelFolder,
    owner: Owner,
    dtype: torch.dtype,
    device: torch.device,
    attention: str | None = None,
) -> CausalModel:
    """A fresh copy of a model, checked against its known files and the setup's vocabulary."""
    verify_files(Path(folder.path), folder.files, folder.remedy)
    model = load_model(folder.path, dtype, device, attention)
    rows = model.config.vocab_size
    if rows < setup.vocabulary.size:
        raise UserError(
            f"{owner} {folder.path}: {rows} vocabulary rows: expected {setup.vocabulary.size} or "
            "more, as the setup declares for student and teacher alike"
        )
    precise = setup.engine.head_dtype == "float32"
    return CausalModel(model, TokenSpace.of(setup), owner, precise)


def load_model(
    path: str, dtype: torch.dtype, device: torch.device, attention: str | None = None
) -> PreTrainedModel:
    """Load a model in eval mode: safetensors only, no remote code. The device sets `attention`.

    UserError unless the files hold each tensor of the model once, in its shape and with finite
    numbers: transformers would fill what is missing with random numbers. On the device `meta` it
    compares names and shapes alone, and reads no numbers.
    """
    transformers.logging.disable_progress_bar()
    attention = attention or attention_for(device)
    with _without_reports():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            attn_implementation=attention,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below
            device_map="meta" if device.type == "meta" else None,
        )
    model, report = loaded
    _check_loaded(path, model, report)
    if device.type == "cuda":
        fuse_norms(model)
    model = model.eval().to(device)  # pyright: ignore[reportArgumentType]
    if device.type != "meta":
        _check_numbers(path, model)
    return model


@contextmanager
def _without_reports() -> Iterator[None]:
    """Keep transformers' tables of tensors out of the log: `_check_loaded` says it in a line."""
    logger = logging.getLogger("transformers.modeling_utils")

    def is_other(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def _check_loaded(path: str, model: Any, report: Mapping[str, Any]) -> None:
    """Raise UserError if tensors of the model were missing, of another shape, or left out."""
    if missing := sorted(report["missing_keys"]):
        remedy = ", or tie_word_embeddings: true" if missing == ["lm_head.weight"] else ""
        raise UserError(
            f"{path} lacks {missing[0]} ({len(missing)} tensors are missing): expected all tensors "
            f"of a {model.config.model_type} model as config.json describes it{remedy}"
        )
    if mismatched := sorted(report["mismatched_keys"]):
        name, stored, wanted = mismatched[0]
        raise UserError(
            f"{path}: {name} has the shape {list(stored)} ({len(mismatched)} tensors have another "
            f"than config.json says): expected {list(wanted)}"
        )
    unread = sorted(name for name in report["unexpected_keys"] if _is_of_decoder(name, model))
    if unread:
        raise UserError(
            f"{path}: {unread[0]} has no place in a {model.config.model_type} model as config.json "
            f"describes it ({len(unread)} such tensors): expected a model that reads all of them"
        )


def _is_of_decoder(name: str, model: Any) -> bool:
    """Whether a tensor without a place in the model lies in one of its modules.

    Leaves out modules that the model does not have, such as towers for images or heads of rewards,
    buffers that transformers computes, and layers that predict further tokens.
    """
    parts = name.split(".")
    if parts[-1] in COMPUTED:
        return False
    inner = dict(model.base_model.named_children())
    if parts[0] == model.base_model_prefix and len(parts) > 1:
        parts = parts[1:]
    elif parts[0] in dict(model.named_children()):
        return True
    numbers = [int(part) for part in parts[1:2] if part.isdecimal()]
    more = getattr(model.config, "num_nextn_predict_layers", None)
    predicts_further = bool(more) and bool(numbers) and numbers[0] >= model.config.num_hidden_layers
    return parts[0] in inner and not predicts_further


@torch.no_grad()
def _check_numbers(path: str, model: Any) -> None:
    """Raise UserError if a tensor has NaN or infinity, or if an embedding or head is all zeros.

    A file that was written to a full disk, or copied in part, ends in zeros.
    """
    names: list[str] = []
    largest: list[Tensor] = []
    for name, parameter in model.named_parameters():
        names.append(name)
        largest.append(torch.linalg.vector_norm(parameter, torch.inf).float())
    tables = {
        id(module.weight)
        for module in (model.get_input_embeddings(), model.get_output_embeddings())
    }
    for name, value in zip(names, torch.stack(largest).tolist(), strict=True):
        if not math.isfinite(value):
            raise UserError(f"{path}: {name} has NaN or infinity: expected finite numbers")
        if value == 0 and id(model.get_parameter(name)) in tables:
            raise UserError(f"{path}: {name} is all zeros: expected weights; copy the file again")


def open_tokenizer(teacher: ModelFolder) -> PreTrainedTokenizerBase:
    """Open the tokenizer in the teacher's folder, verify its files, and run no code from there."""
    known = {name: sha256 for name, sha256 in teacher.files.items() if name.startswith("tokenizer")}
    verify_files(Path(teacher.path), known, teacher.remedy)
    return AutoTokenizer.from_pretrained(teacher.path, trust_remote_code=False)


def best_device() -> torch.device:
    """The GPU this process was given, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
