"""Trains the student on rollouts: AdamW, a rate schedule, one global mean over response tokens.

Shapes as in `rollouts.py`; N response tokens of a micro-batch, flattened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import AdamW
from transformers.pytorch_utils import Conv1D

from orchestrator.config import Optimizer
from orchestrator.engines.common.causal import CausalModel, log_probs_of
from orchestrator.engines.common.learning import (
    MicroBatch,
    Readings,
    largest_gap,
    learning_rate,
    measure,
    micro_batches_of,
    summed_objective,
)
from orchestrator.engines.common.passes import Passes, checkpoint_activations, make_lean
from orchestrator.engines.common.scoring import score
from orchestrator.engines.common.tensor_digests import digests_of
from orchestrator.engines.interface import Lora, WeightsRef
from orchestrator.liveness import heartbeat
from orchestrator.policy.spec import Objective
from orchestrator.records.rundir import LEARNER_STATE
from orchestrator.rollouts import Rollouts, TeacherScores


class TorchTrainer:
    """A student in training for `steps` updates, with float32 master weights.

    `dtype` is the forward pass's. If it `takes_turns` on its device, its state lies in host memory
    except while it computes. `passes` default to `Passes.on` its device. With `lora` the student's
    weights stay, and adapters beside them are trained.
    """

    def __init__(
        self,
        student: CausalModel,
        optimizer: Optimizer,
        micro_batch_tokens: int,
        dtype: torch.dtype,
        steps: int,
        takes_turns: bool = False,
        passes: Passes | None = None,
        lora: Lora | None = None,
    ):
        if lora is not None:
            add_adapters(student.model, lora)
            optimizer = replace(optimizer, lr=lora.lr)
        self._student, self._config, self._steps = student, optimizer, steps
        self._micro_batch_tokens, self._dtype = micro_batch_tokens, dtype
        self._device = student.device  # between turns the student itself is on the host
        self._passes = passes or Passes.on(self._device, dtype)
        if self._passes.checkpointing:
            checkpoint_activations(student.model)
        if self._passes.lean:
            make_lean(student.model, dtype)
        self._parameters = trainable(student.model)
        self._adamw = torch.optim.AdamW(
            self._parameters.values(),
            lr=optimizer.lr,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            # In place: PyTorch's default on GPUs copies one moment of all parameters.
            fused=True if self._device.type == "cuda" else None,
        )
        whole = dict(student.model.named_parameters())
        self._offload = Offload(whole, self._adamw) if takes_turns else None
        self._forward_weights: dict[str, Tensor] | None = None  # while the student is on the host
        self._rest()

    def step(
        self, rollouts: Rollouts, scores: TeacherScores | None, goal: Objective, step: int
    ) -> dict[str, float]:
        """Make update number `step` (from 0); returns loss, norm, lr, and measurements."""
        with self._on_device():
            return self._step(rollouts, scores, goal, step)

    def _step(
        self, rollouts: Rollouts, scores: TeacherScores | None, goal: Objective, step: int
    ) -> dict[str, float]:
        self._student.model.train()
        rate = learning_rate(self._config, step, self._steps)
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.zero_grad(set_to_none=True)
        # The loss is one mean over all response tokens of the batch. Every micro-batch is divided
        # by the total, so that the grouping of rows does not change a token's weight.
        total = int(rollouts.lengths_B.sum())
        sums: dict[str, float] = {}
        gaps: list[float] = []
        most, packed = self._micro_batch_tokens, self._passes.packed
        for batch in micro_batches_of(rollouts, scores, most, packed):
            loss, measured = self._accumulate(batch, goal, total)
            for name, value in {"loss": loss, **measured.sums}.items():
                sums[name] = sums.get(name, 0.0) + value
            gaps += measured.gaps
            heartbeat.advance()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._config.clip)
        self._adamw.step()
        return {
            **{name: value / total for name, value in sums.items()},
            **largest_gap(gaps),
            "grad_norm": float(norm),
            "lr": rate,
        }

    def _accumulate(self, batch: MicroBatch, goal: Objective, total: int) -> tuple[float, Readings]:
        """Add the gradient of one micro-batch to the global mean; returns its summed loss and more.

        Its tensors on the device are freed before the next micro-batch begins.
        """
        given = batch.inputs(self._device, self._passes.packed)
        with torch.autocast(self._device.type, self._dtype, enabled=self._mixed):
            hidden = self._student.predicting(given)
        targets = batch.targets.to(self._device)
        head, space = self._student.head_weight, self._student.space
        loss = summed_objective(hidden, head, targets, goal, space)
        (loss / total).backward()
        return float(loss.detach()), measure(hidden.detach(), head.detach(), targets, space)

    def log_probs(self, ids: Sequence[int]) -> list[float]:
        """log p of the ids under the student in training, in the forward pass's dtype."""
        self._student.model.eval()
        with self._on_device(), torch.autocast(self._device.type, self._dtype, enabled=self._mixed):
            return log_probs_of(self._student, ids)

    @torch.no_grad()
    def score(self, rollouts: Rollouts) -> TeacherScores:
        """The statistics of the student itself, in the forward pass's dtype; see `Trainer`."""
        self._student.model.eval()
        with self._on_device(), torch.autocast(self._device.type, self._dtype, enabled=self._mixed):
            return score(self._student, rollouts, self._micro_batch_tokens, self._passes)

    def publish(self, step: int) -> WeightsRef:
        """Copies of the weights on the CPU, in the forward pass's dtype; see `Trainer.publish`."""
        return WeightsRef(step, self._weights())

    def export(self, folder: Path) -> dict[str, str]:
        """Write the model in Hugging Face layout, in the forward pass's dtype; see `Trainer`."""
        weights = self._weights()
        self._student.model.save_pretrained(folder, state_dict=weights, max_shard_size="1TB")
        return digests_of(weights.items())

    def save(self, folder: Path) -> None:
        """Write trained weights and AdamW moments, from which `restore` continues exactly."""
        tensors = {
            f"weight/{name}": p.detach().cpu().contiguous() for name, p in self._parameters.items()
        }
        for name, parameter in self._parameters.items():
            for key, value in self._adamw.state[parameter].items():
                tensors[f"{key}/{name}"] = value.detach().cpu().contiguous()
        save_file(tensors, folder / LEARNER_STATE)

    def restore(self, folder: Path) -> None:
        """Continue from the state that `save` wrote."""
        tensors = load_file(folder / LEARNER_STATE)
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(tensors[f"weight/{name}"])
                state = {}
                for key in ("step", "exp_avg", "exp_avg_sq"):
                    # A learner that was saved before its first update has none of these.
                    if f"{key}/{name}" in tensors:
                        # AdamW keeps its moments beside the parameters. Its step count stays on the
                        # training device, where a fused AdamW needs it.
                        place = self._device if key == "step" else parameter.device
                        state[key] = tensors[f"{key}/{name}"].to(place)
                self._adamw.state[parameter] = state
        self._forward_weights = None

    @property
    def _mixed(self) -> bool:
        """Whether the forward pass has another dtype than the weights."""
        return self._dtype != torch.float32

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Bring the learner's state to the device for its turn."""
        if self._offload is not None:
            self._offload.to_device()
        yield
        self._rest()

    def _rest(self) -> None:
        """End the learner's turn.

        Copies of the weights for other roles are made before, while casting is fast on the device.
        A learner that stays gives back what only its passes took: its allocator's leftovers would
        grow with each new length of rows.
        """
        if self._offload is None and self._device.type == "cuda":
            torch.cuda.empty_cache()
        if self._offload is not None:
            weights = merged_weights(self._student.model)
            self._forward_weights = self._offload.copies(weights, self._dtype)
            self._offload.to_host()  # and wait for the copies

    def _weights(self) -> dict[str, Tensor]:
        """Copies of the weights in the forward pass's dtype, on the CPU; callers only read them."""
        if self._forward_weights is not None:
            return self._forward_weights
        return {
            name: weight.to("cpu", self._dtype, copy=True)
            for name, weight in merged_weights(self._student.model)
        }


# --- low-rank adapters of a student in training: W + (α/r)·B·A, of which A and B alone are trained ---
#
# peft puts a pair (A, B) beside every linear layer but the head. Nothing else knows of them: samplers
# and checkpoints get the merged weights under the names of the plain model.


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


# --- moves a learner's weights and AdamW moments to host memory while other roles use the GPU ---


MOMENTS = ("exp_avg", "exp_avg_sq")
# PyTorch rounds each page-locked buffer up to a power of two (`CachingHostAllocator.h` of 2.13):
# one buffer per tensor would take a third more than the tensors. Tensors share buffers of this size
# instead, and only the last buffer is not full.
BUFFER_BYTES = 2**31
ALIGNMENT = 256  # of a tensor in its buffer, bytes


class Offload:
    """Moves the tensors of a learner between its device, where they start, and buffers of the host.

    Parameters and the optimizer stay the same objects. For a learner on the GPU the buffers are
    page-locked: moving a student of 1.7 billion parameters (20 GB) takes about half a second each
    way over PCIe 5. Buffers are kept once made.
    """

    def __init__(self, parameters: Mapping[str, Tensor], adamw: AdamW):
        self._parameters = parameters
        self._adamw = adamw
        self._device = next(iter(parameters.values())).device
        # `weight/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME` or `copy/NAME` → its part of a buffer.
        self._places: dict[str, Tensor] = {}

    def to_host(self) -> None:
        """Drop the gradients, and move weights and moments to the host."""
        self._adamw.zero_grad(set_to_none=True)
        self._make_places(self._tensors())
        for name, parameter in self._parameters.items():
            parameter.data = self._moved(f"weight/{name}", parameter.data)
            state = self._adamw.state[parameter]
            for key in self._moments(state):
                state[key] = self._moved(f"{key}/{name}", state[key])
        if self._device.type == "cuda":
            # Copies to page-locked memory run beside the host: their sources may be freed only
            # after them, and the allocator gives memory back only when it is asked.
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()

    def to_device(self) -> None:
        """Move weights and moments to the device."""
        for parameter in self._parameters.values():
            parameter.data = parameter.data.to(self._device, non_blocking=True, copy=True)
            state = self._adamw.state[parameter]
            for key in self._moments(state):
                state[key] = state[key].to(self._device, non_blocking=True, copy=True)

    def copies(
        self, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """Copies of named weights on the host, in `dtype`, until the next call overwrites them.

        Synchronise the device before reading them.
        """
        tensors: dict[str, Tensor] = {}
        for name, weight in weights:
            tensors[f"copy/{name}"] = weight
        self._make_places(tensors, dtype)
        copies: dict[str, Tensor] = {}
        for key, weight in tensors.items():
            copies[key.removeprefix("copy/")] = self._moved(key, weight.to(dtype))
        return copies

    def _moments(self, state: Mapping[str, Tensor]) -> list[str]:
        """The names of existing moments: none before the first update."""
        return [key for key in MOMENTS if key in state]

    def _tensors(self) -> dict[str, Tensor]:
        """Weights and existing moments, by the keys of their places."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            tensors[f"weight/{name}"] = parameter.data
            state = self._adamw.state[parameter]
            for key in self._moments(state):
                tensors[f"{key}/{name}"] = state[key]
        return tensors

    def _make_places(self, tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> None:
        """Give tensors that have none their places on the host, in `dtype` or else their own."""
        sizes: dict[str, int] = {}
        for key, tensor in tensors.items():
            if key not in self._places:
                sizes[key] = tensor.numel() * (dtype or tensor.dtype).itemsize
        for shared in buffers(sizes):
            end = sum(size for _, size in shared)
            buffer = torch.empty(end, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
            start = 0
            for key, size in shared:
                tensor = tensors[key]
                place = buffer[start : start + sizes[key]].view(dtype or tensor.dtype)
                self._places[key] = place.view(tensor.shape)
                start += size

    def _moved(self, key: str, tensor: Tensor) -> Tensor:
        """Copy a tensor to its place and return that; synchronise the device before reading it."""
        return self._places[key].copy_(tensor, non_blocking=True)


def buffers(sizes: Mapping[str, int]) -> list[list[tuple[str, int]]]:
    """Assign tensors and their aligned bytes to buffers: largest first, into the first with room.

    A buffer holds at most BUFFER_BYTES, or a single larger tensor.
    """
    shared: list[list[tuple[str, int]]] = []
    room: list[int] = []
    for key, size in sorted(sizes.items(), key=lambda item: -item[1]):
        aligned = -(-size // ALIGNMENT) * ALIGNMENT  # rounded up
        place = next((i for i, free in enumerate(room) if free >= aligned), len(shared))
        if place == len(shared):
            shared.append([])
            room.append(max(BUFFER_BYTES, aligned))
        shared[place].append((key, aligned))
        room[place] -= aligned
    return shared
