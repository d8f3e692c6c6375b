"""Trains the student on rollouts: AdamW, a rate schedule, one global mean over response tokens.

Shapes as in `rollouts.py`; N response tokens of a micro-batch, flattened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from orchestrator.config import Optimizer
from orchestrator.engines.common.causal import CausalModel, log_probs_of
from orchestrator.engines.common.learning import (
    Readings,
    Targets,
    largest_gap,
    learning_rate,
    measure,
    summed_objective,
)
from orchestrator.engines.common.packing import inputs, micro_batches
from orchestrator.engines.common.passes import Passes, checkpoint_activations, make_lean
from orchestrator.engines.common.store import Offload
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
        lengths = [
            len(r.prompt_ids) + int(n)
            for r, n in zip(rollouts.requests, rollouts.lengths_B, strict=True)
        ]
        for group in micro_batches(lengths, self._micro_batch_tokens, self._passes.packed):
            loss, measured = self._accumulate(rollouts, scores, goal, group, total)
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

    def _accumulate(
        self,
        rollouts: Rollouts,
        scores: TeacherScores | None,
        goal: Objective,
        group: list[int],
        total: int,
    ) -> tuple[float, Readings]:
        """Add the gradient of one micro-batch to the global mean; returns its summed loss and more.

        Its tensors on the device are freed before the next micro-batch begins.
        """
        prompts = [rollouts.requests[row].prompt_ids for row in group]
        responses = [rollouts.response(row) for row in group]
        given = inputs(prompts, responses, self._device, self._passes.packed)
        with torch.autocast(self._device.type, self._dtype, enabled=self._mixed):
            hidden = self._student.predicting(given)
        targets = Targets.gather(rollouts, scores, group).to(self._device)
        head, space = self._student.head_weight, self._student.space
        loss = summed_objective(hidden, head, targets, goal, space)
        (loss / total).backward()
        return float(loss.detach()), measure(hidden.detach(), head.detach(), targets, space)

    def log_probs(self, ids: Sequence[int]) -> list[float]:
        """log p of the ids under the student in training, in the forward pass's dtype."""
        self._student.model.eval()
        with self._on_device(), torch.autocast(self._device.type, self._dtype, enabled=self._mixed):
            return log_probs_of(self._student, ids)

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
