"""Options of the forward and backward passes of scoring and learning, by device."""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from orchestrator.engines.common.attention import has_packed_kernel


@dataclass(frozen=True)
class Passes:
    """Options that change time and memory of passes, and results by rounding alone.

    `packed` sequences lie one after the other in one row, without padding. `checkpointing` keeps
    only the input of each layer, and recomputes the layer in the backward pass. `lean` passes have
    all activations in the dtype of the passes, and norms that read and write them once.
    """

    packed: bool = False
    checkpointing: bool = False
    lean: bool = False

    @staticmethod
    def on(device: torch.device, dtype: torch.dtype, checkpointing: bool | None = None) -> Passes:
        """Options for a device and a forward `dtype`; `checkpointing` as given, else on GPUs.

        CPUs have memory for all activations. For a GPU `engines.budget` decides.
        """
        on_gpu = device.type == "cuda"
        return Passes(
            packed=has_packed_kernel(device, dtype),
            checkpointing=on_gpu if checkpointing is None else checkpointing,
            lean=on_gpu,
        )


def checkpoint_activations(model: Any) -> None:
    """Let the layers of a transformers model keep only their inputs while it is in train mode."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def make_lean(model: Any, dtype: torch.dtype) -> None:
    """Let the activations of a transformers model have `dtype`, independent of its weights.

    Autocast alone leaves the residual stream in float32, as the embedding's rows are, and with it
    the norms and their outputs: twice the bytes to keep, read and write.
    """
    fuse_norms(model)
    model.get_input_embeddings().register_forward_hook(lambda _module, _ids, rows: rows.to(dtype))


def fuse_norms(model: Any) -> None:
    """Run each RMS norm as one kernel if the device has it, not as transformers' six in float32."""
    for module in model.modules():
        # The norms of each architecture are classes of their own, alike in name and attribute.
        # `engines.common.architecture` compares models before and after.
        if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.forward = MethodType(_fused_norm, module)


def _fused_norm(self: Any, hidden: Tensor) -> Tensor:
    weight = self.weight.to(hidden.dtype)  # PyTorch's kernel needs equal dtypes
    with torch.autocast(hidden.device.type, enabled=False):
        return rms_norm(hidden, weight.shape, weight, self.variance_epsilon)
