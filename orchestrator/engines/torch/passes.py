"""How the forward and backward passes of scoring and learning are made on a device."""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from orchestrator.engines.torch.attention import has_packed_kernel


@dataclass(frozen=True)
class Passes:
    """Changes time and memory of passes, and their results by rounding alone.

    `packed` sequences stand one after the other in one row, without padding. `checkpointing` keeps of each layer its
    input alone, and computes the layer again in the backward pass. `lean` passes have all activations in the dtype of
    the passes, and norms that read and write them once.
    """

    packed: bool = False
    checkpointing: bool = False
    lean: bool = False

    @staticmethod
    def on(device: torch.device, dtype: torch.dtype) -> Passes:
        """Those that suit a device and the `dtype` of forward passes. CPUs have memory for all activations."""
        on_gpu = device.type == "cuda"
        return Passes(packed=has_packed_kernel(device, dtype), checkpointing=on_gpu, lean=on_gpu)


def checkpoint_activations(model: Any) -> None:
    """Let the layers of a transformers model keep no more than their inputs, as long as it is in train mode."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def make_lean(model: Any, dtype: torch.dtype) -> None:
    """Let the activations of a transformers model be of `dtype`, whatever its weights are.

    Autocast alone leaves the sum that runs through all layers in float32, since the embedding's rows are, and with it
    the norms and what follows them: twice the bytes to keep, to read and to write.
    """
    fuse_norms(model)
    model.get_input_embeddings().register_forward_hook(lambda _module, _ids, rows: rows.to(dtype))


def fuse_norms(model: Any) -> None:
    """Let each RMS norm be one kernel where the device has one; transformers' own are six, in float32."""
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = MethodType(_fused_norm, module)


def _fused_norm(self: Any, hidden: Tensor) -> Tensor:
    weight = self.weight.to(hidden.dtype)  # with another dtype PyTorch would not take its kernel
    with torch.autocast(hidden.device.type, enabled=False):
        return rms_norm(hidden, weight.shape, weight, self.variance_epsilon)
