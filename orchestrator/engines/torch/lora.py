"""Low-rank adapters of a student in training: W + (α/r)·B·A, of which A and B alone are trained.

peft puts a pair (A, B) beside every linear layer but the head. Nothing else knows of them: samplers
and checkpoints get the merged weights under the names of the plain model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from orchestrator.engines.interface import Lora

ADAPTER = "default"  # peft's name of an only adapter
BASE = ".base_layer"  # in the names of weights that have an adapter beside them


def add_adapters(model: Any, lora: Lora) -> None:
    """Freeze a transformers model and put adapters into it; the model computes as before.

    B starts at zero and A at uniform numbers, which depend on `lora.seed` alone.
    """
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules="all-linear",
        lora_dropout=0.0,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(lora.seed)
        inject_adapter_in_model(config, model)
    for layer in _adapted(model):  # peft keeps adapters in float32 for a model of 16 bits
        for part in (layer.lora_A[ADAPTER], layer.lora_B[ADAPTER]):
            part.to(layer.get_base_layer().weight.dtype)


def trainable(model: Any) -> dict[str, Tensor]:
    """The weights that an optimizer updates, by name: all of them in a model without adapters."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def merged_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Names and weights of the plain model, with W + (α/r)·B·A where an adapter is; detached."""
    deltas = {}
    for layer in _adapted(model):
        # peft transposes the product for layers that store their weight so, as GPT-2's do.
        deltas[id(layer.get_base_layer().weight)] = layer.get_delta_weight(ADAPTER)
    for name, parameter in model.named_parameters():
        if ".lora_A." in name or ".lora_B." in name:
            continue
        weight = parameter.detach()
        if id(parameter) in deltas:
            weight = weight + deltas[id(parameter)]
        yield name.replace(BASE, ""), weight


def _adapted(model: Any) -> Iterator[Any]:
    return (module for module in model.modules() if isinstance(module, LoraLayer))
