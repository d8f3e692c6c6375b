"""How the forward and backward passes of scoring and learning are made on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from orchestrator.engines.torch.attention import has_packed_kernel


@dataclass(frozen=True)
class Passes:
    """Changes time and memory of passes, and their results by rounding alone.

    `packed` sequences stand one after the other in one row, without padding. `checkpointing` keeps of each layer its
    input alone, and computes the layer again in the backward pass.
    """

    packed: bool
    checkpointing: bool

    @staticmethod
    def on(device: torch.device, dtype: torch.dtype) -> Passes:
        """Those that suit a device and the `dtype` of forward passes. CPUs have memory for all activations."""
        return Passes(packed=has_packed_kernel(device, dtype), checkpointing=device.type == "cuda")


def checkpoint_activations(model: Any) -> None:
    """Let the layers of a transformers model keep no more than their inputs, as long as it is in train mode."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
