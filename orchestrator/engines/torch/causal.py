"""A transformers causal language model behind the few operations the engines need.

Shapes: B sequences, L prompt positions (left-padded), V vocabulary rows, N flattened response positions, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from orchestrator.engines.interface import Owner
from orchestrator.engines.torch.attention import attention_for
from orchestrator.policy.vocabulary import TokenSpace


@dataclass
class CausalModel:
    """A model, and the token space in which its probabilities are read."""

    model: Any  # PreTrainedModel; its forward signature is dynamic
    space: TokenSpace
    owner: Owner

    @property
    def device(self) -> torch.device:
        return self.model.device

    def log_prob(self, logits: Tensor) -> Tensor:
        """Canonical log-probabilities, (…, V) → (…, V), float32 or better."""
        canonical = self.space.student_log_prob if self.owner == "student" else self.space.teacher_log_prob
        return canonical(logits)

    def hidden(self, ids: Tensor, attention: Tensor) -> Tensor:
        """Last hidden states (B, L, H) of right-padded rows."""
        return self.model.model(input_ids=ids, attention_mask=attention, use_cache=False).last_hidden_state

    def head(self, hidden: Tensor) -> Tensor:
        """Logits (N, V) of hidden states (N, H)."""
        return self.model.lm_head(hidden)


@torch.no_grad()
def log_probs_of(causal: CausalModel, ids: Sequence[int]) -> list[float]:
    """log p of each of the ids but the first, after those before it."""
    row = torch.tensor([list(ids)], device=causal.device)
    log_p = causal.log_prob(causal.head(causal.hidden(row, torch.ones_like(row))[0, :-1]))
    return log_p.gather(-1, row[0, 1:, None])[:, 0].tolist()


def load_model(path: str, dtype: torch.dtype, device: torch.device, attention: str | None = None) -> PreTrainedModel:
    """A model from a folder, in eval mode; safetensors only, no remote code. `attention` is that of the device."""
    transformers.logging.disable_progress_bar()
    attention = attention or attention_for(device)
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, use_safetensors=True, trust_remote_code=False, attn_implementation=attention
    )
    return model.eval().to(device)  # pyright: ignore[reportArgumentType]


def best_device() -> torch.device:
    """The GPU this process was given, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Packed:
    """Right-padded prompt+response rows, and where their response tokens are predicted."""

    ids: Tensor  # (B, L)
    attention: Tensor  # (B, L)
    rows: Tensor  # (N,) row of each response token
    columns: Tensor  # (N,) position whose logits predict it
    positions: Tensor  # (N,) its position t in the response


def pack(prompts: list[tuple[int, ...]], responses: list[list[int]], device: torch.device) -> Packed:
    """Rows for one forward pass over prompts followed by responses."""
    sequences = [[*prompt, *response] for prompt, response in zip(prompts, responses, strict=True)]
    ids = torch.zeros(len(prompts), max(map(len, sequences)), dtype=torch.long)
    attention = torch.zeros_like(ids)
    rows, columns, positions = [], [], []
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
        attention[row, : len(sequence)] = 1
        rows += [row] * len(responses[row])
        # The logits at a position predict the token after it: those at the prompt's last position predict the first
        # token of the response, and those at the response's last are not read.
        columns += range(len(prompts[row]) - 1, len(sequence) - 1)
        positions += range(len(responses[row]))
    return Packed(
        ids=ids.to(device),
        attention=attention.to(device),
        rows=torch.tensor(rows, dtype=torch.long, device=device),
        columns=torch.tensor(columns, dtype=torch.long, device=device),
        positions=torch.tensor(positions, dtype=torch.long, device=device),
    )


def micro_batches(lengths: Iterable[int], max_tokens: int) -> Iterator[list[int]]:
    """Row indices, shortest rows first, grouped so that rows × longest row ≤ max_tokens (a single row may exceed it).

    Rows of like length share a group, so that little of it is padding.
    """
    group: list[int] = []
    for length, row in sorted((length, row) for row, length in enumerate(lengths)):
        if group and length * (len(group) + 1) > max_tokens:
            yield group
            group = []
        group.append(row)
    if group:
        yield group
