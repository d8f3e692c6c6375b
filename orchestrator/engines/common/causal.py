"""A transformers causal language model behind the few operations the engines need.

Shapes: B sequences, L positions, N response tokens (flattened), V vocabulary rows, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from orchestrator.engines.common.attention import READS_PACKED, attention_for
from orchestrator.engines.common.packing import Inputs
from orchestrator.engines.common.passes import fuse_norms
from orchestrator.engines.interface import Owner
from orchestrator.policy.vocabulary import TokenSpace


@dataclass
class CausalModel:
    """A model with the token space that canonicalises its probabilities."""

    model: Any  # PreTrainedModel; its forward signature is dynamic
    space: TokenSpace
    owner: Owner

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def head_weight(self) -> Tensor:
        """The LM head (rows, H), whose product with `hidden` are the logits."""
        return self.model.get_output_embeddings().weight

    def log_prob(self, logits: Tensor) -> Tensor:
        """Canonical log-probabilities, (…, rows) → (…, V), float32 or better."""
        if self.owner == "student":
            return self.space.student_log_prob(logits)
        return self.space.teacher_log_prob(logits)

    def hidden(self, ids: Tensor, attention: Any, **packing: Any) -> Tensor:
        """States (B, L, H) for the head, of right-padded rows, or of sequences packed into one."""
        hidden = self.model.base_model(
            input_ids=ids, attention_mask=attention, use_cache=False, **packing
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
        """Logits (N, rows) of `hidden` (N, H)."""
        return self.model.get_output_embeddings()(hidden)


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


def load_model(
    path: str, dtype: torch.dtype, device: torch.device, attention: str | None = None
) -> PreTrainedModel:
    """Load a model in eval mode: safetensors only, no remote code. The device sets `attention`."""
    transformers.logging.disable_progress_bar()
    attention = attention or attention_for(device)
    model = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=dtype,
        use_safetensors=True,
        trust_remote_code=False,
        attn_implementation=attention,
    )
    if device.type == "cuda":
        fuse_norms(model)
    return model.eval().to(device)  # pyright: ignore[reportArgumentType]


def best_device() -> torch.device:
    """The GPU this process was given, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
