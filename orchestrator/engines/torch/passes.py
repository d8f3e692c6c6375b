"""How the forward and backward passes of scoring and learning are made on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.utils.import_utils import is_flash_attn_2_available


@dataclass(frozen=True)
class Passes:
    """Changes time and memory of passes, and their results by rounding alone.

    `packed` sequences stand one after the other in one row, without padding. `checkpointing` keeps of each layer its
    input alone, and computes the layer again in the backward pass.
    """

    packed: bool
    checkpointing: bool

    @staticmethod
    def on(device: torch.device) -> Passes:
        """Packed where attention needs no mask for it. CPUs keep all activations: their memory is plenty."""
        on_gpu = device.type == "cuda"
        return Passes(packed=on_gpu and is_flash_attn_2_available(), checkpointing=on_gpu)


def checkpoint_activations(model: Any) -> None:
    """Let the layers of a transformers model keep no more than their inputs, as long as it is in train mode."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
