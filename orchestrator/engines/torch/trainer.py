"""One optimizer update on a batch of rollouts: AdamW, a rate schedule, one global mean over response tokens.

Shapes as in `rollouts.py`; N are the response tokens of a micro-batch, flattened.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from orchestrator.config import Optimizer
from orchestrator.engines.interface import WeightsRef
from orchestrator.engines.torch.causal import CausalModel, log_probs_of, micro_batches, pack
from orchestrator.engines.torch.head_loss import summed_loss
from orchestrator.policy import objective
from orchestrator.policy.spec import Objective
from orchestrator.policy.vocabulary import NEG_INF
from orchestrator.records import pulse
from orchestrator.records.rundir import LEARNER_STATE
from orchestrator.rollouts import Rollouts, TeacherScores

MASS_SAMPLE = 512  # tokens of a micro-batch on which M is measured


def learning_rate(optimizer: Optimizer, step: int, steps: int) -> float:
    """The rate of update k = `step` of N = `steps`, with a warmup of W updates.

    lr·½(1 − cos(π(k+1)/W)) for k < W; then lr, or lr·(N − k)/(N − W) under `decay: linear`, which would be zero at N.
    """
    warmup = optimizer.warmup_steps
    if step < warmup:
        return optimizer.lr * 0.5 * (1 - math.cos(math.pi * (step + 1) / warmup))
    if optimizer.decay == "linear":
        return optimizer.lr * (steps - step) / (steps - warmup)
    return optimizer.lr


class TorchTrainer:
    """A student in training for `steps` updates. Its weights are master weights in float32; `dtype` is that of the
    forward pass.
    """

    def __init__(
        self, student: CausalModel, optimizer: Optimizer, micro_batch_tokens: int, dtype: torch.dtype, steps: int
    ):
        self._student, self._config, self._steps = student, optimizer, steps
        self._micro_batch_tokens, self._dtype = micro_batch_tokens, dtype
        self._parameters = dict(student.model.named_parameters())
        self._adamw = torch.optim.AdamW(
            self._parameters.values(),
            lr=optimizer.lr,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        )

    def step(self, rollouts: Rollouts, scores: TeacherScores | None, goal: Objective, step: int) -> dict[str, float]:
        """Update number `step` (from 0); returns loss, gradient norm before clipping, lr, and masses M and Q."""
        self._student.model.train()
        rate = learning_rate(self._config, step, self._steps)
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.zero_grad(set_to_none=True)
        # The loss is one mean over all response tokens of the batch, so every micro-batch is divided by the tokens of
        # all: how rows are grouped does not change what a token weighs.
        total = int(rollouts.lengths_B.sum())
        sums: dict[str, float] = {}
        lengths = [len(r.prompt_ids) + int(n) for r, n in zip(rollouts.requests, rollouts.lengths_B, strict=True)]
        for group in micro_batches(lengths, self._micro_batch_tokens):
            for name, value in self._accumulate(rollouts, scores, goal, group, total).items():
                sums[name] = sums.get(name, 0.0) + value
            pulse.advance()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._config.clip)
        self._adamw.step()
        return {**{name: value / total for name, value in sums.items()}, "grad_norm": float(norm), "lr": rate}

    def _accumulate(
        self, rollouts: Rollouts, scores: TeacherScores | None, goal: Objective, group: list[int], total: int
    ) -> dict[str, float]:
        """Add the gradient of one micro-batch to the global mean; returns sums over its tokens.

        What it holds on the device is let go of before the next micro-batch begins.
        """
        device = self._student.device
        prompts = [rollouts.requests[row].prompt_ids for row in group]
        packed = pack(prompts, [rollouts.response(row) for row in group], device)
        rows = torch.tensor(group, device=device)[packed.rows].cpu()
        positions = packed.positions.cpu()
        with torch.autocast(device.type, self._dtype, enabled=self._dtype != torch.float32):
            hidden = self._student.hidden(packed.ids, packed.attention)[packed.rows, packed.columns]
        targets = _Targets.gather(rollouts, scores, rows, positions, device)
        loss = self._summed_loss(hidden, targets, goal)
        (loss / total).backward()
        masses = self._masses(hidden.detach(), targets) if targets.log_q is not None else {}
        return {"loss": float(loss.detach()), **masses}

    def _summed_loss(self, hidden: Tensor, targets: _Targets, goal: Objective) -> Tensor:
        """Σ of the objective over the N tokens of a micro-batch."""
        head = self._student.model.lm_head.weight
        if goal.name == "renormalized":
            # p̄ is the softmax of the support's logits: the rest of the vocabulary need not be computed.
            masked = self._student.space.is_masked(targets.support)

            def on_support(logits: Tensor, part: slice) -> Tensor:
                log_p = logits.masked_fill(masked[part], NEG_INF)
                return support_losses(log_p, targets.part(part).log_q, goal)

            return summed_loss(hidden, head, targets.support, on_support)

        def on_vocabulary(logits: Tensor, part: slice) -> Tensor:
            return full_losses(self._student.log_prob(logits), targets.part(part), goal)

        return summed_loss(hidden, head, None, on_vocabulary)

    @torch.no_grad()
    def _masses(self, hidden: Tensor, targets: _Targets) -> dict[str, float]:
        """Σ over tokens of M and Q; M from an even subsample, since it alone needs the full vocabulary."""
        assert targets.log_q is not None
        stride = -(-len(hidden) // MASS_SAMPLE)
        sampled = hidden[::stride]
        head = self._student.model.lm_head.weight.to(hidden.dtype)
        log_p = self._student.log_prob(sampled @ head.T).gather(-1, targets.support[::stride])
        share = float(objective.support_mass(log_p).mean())
        return {
            "support_mass_student": share * len(hidden),
            "support_mass_teacher": float(objective.support_mass(targets.log_q).sum()),
        }

    def log_probs(self, ids: Sequence[int]) -> list[float]:
        """Of the student in training, in the forward pass's dtype."""
        self._student.model.eval()
        with torch.autocast(self._student.device.type, self._dtype, enabled=self._dtype != torch.float32):
            return log_probs_of(self._student, ids)

    def publish(self, step: int) -> WeightsRef:
        """Copies of the weights after `step` steps, detached, in the forward pass's dtype, on the CPU."""
        return WeightsRef(step, self._weights())

    def export(self, folder: Path) -> None:
        """The model in Hugging Face layout, in the forward pass's dtype."""
        self._student.model.save_pretrained(folder, state_dict=self._weights(), max_shard_size="1TB")

    def save(self, folder: Path) -> None:
        """Master weights and AdamW moments: what `restore` needs to go on exactly."""
        tensors = {f"weight/{name}": p.detach().cpu().contiguous() for name, p in self._parameters.items()}
        for name, parameter in self._parameters.items():
            for key, value in self._adamw.state[parameter].items():
                tensors[f"{key}/{name}"] = value.detach().cpu().contiguous()
        save_file(tensors, folder / LEARNER_STATE)

    def restore(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        tensors = load_file(folder / LEARNER_STATE)
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(tensors[f"weight/{name}"])
                state = {}
                for key in ("step", "exp_avg", "exp_avg_sq"):
                    if f"{key}/{name}" in tensors:  # a learner that was saved before its first update has none
                        # AdamW keeps its count of steps on the CPU and the moments where the parameters are.
                        place = torch.device("cpu") if key == "step" else self._student.device
                        state[key] = tensors[f"{key}/{name}"].to(place)
                self._adamw.state[parameter] = state

    def _weights(self) -> dict[str, Tensor]:
        return {name: p.detach().to("cpu", self._dtype, copy=True) for name, p in self._parameters.items()}


@dataclass(frozen=True)
class _Targets:
    """What the N tokens of a micro-batch are trained towards; no teacher for `nll`."""

    tokens: Tensor  # (N,)
    support: Tensor  # (N, K)
    log_q: Tensor | None  # (N, K)

    @staticmethod
    def gather(
        rollouts: Rollouts, scores: TeacherScores | None, rows: Tensor, positions: Tensor, device: torch.device
    ) -> _Targets:
        return _Targets(
            rollouts.tokens_BT[rows, positions].to(device),
            rollouts.support_ids_BTK[rows, positions].to(device),
            None if scores is None else scores.support_BTK[rows, positions].to(device),
        )

    def part(self, part: slice) -> _Targets:
        return _Targets(self.tokens[part], self.support[part], None if self.log_q is None else self.log_q[part])


def full_losses(log_p: Tensor, targets: _Targets, goal: Objective) -> Tensor:
    """Losses (N,) from the student's log p over the whole vocabulary (N, V)."""
    if goal.name == "nll":
        return -log_p.gather(-1, targets.tokens[:, None])[:, 0]
    assert targets.log_q is not None
    return support_losses(log_p.gather(-1, targets.support), targets.log_q, goal)


def support_losses(log_p: Tensor, log_q: Tensor | None, goal: Objective) -> Tensor:
    """Losses (N,) from log p on the support (N, K), which `renormalized` takes up to a constant of each token."""
    assert log_q is not None
    target = objective.veto_target(log_p, log_q, goal.veto_beta) if goal.veto_beta else log_q
    return objective.token_loss(goal.name, log_p, target)
