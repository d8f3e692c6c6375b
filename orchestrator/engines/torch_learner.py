"""One optimizer update on a batch of rollouts: AdamW, cosine warmup, one global mean over response tokens.

Shapes as in `batch.py`; N are the response tokens of a micro-batch, flattened.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from orchestrator import objective
from orchestrator.batch import Rollouts, TeacherScores
from orchestrator.config import Optimizer
from orchestrator.engines.causal import CausalModel, Packed, micro_batches, pack

MASTER_STATE = "learner.safetensors"


@dataclass(frozen=True)
class Objective:
    """What is minimised: a member of the reverse-KL family, or `nll` on the tokens (SFT)."""

    name: str
    veto_beta: float = 0.0


def warmup_rate(optimizer: Optimizer, step: int) -> float:
    """lr_k = lr·½(1 − cos(π(k+1)/W)) for k < W, then lr."""
    if step >= optimizer.warmup_steps:
        return optimizer.lr
    return optimizer.lr * 0.5 * (1 - math.cos(math.pi * (step + 1) / optimizer.warmup_steps))


class TorchLearner:
    """A student in training. Its weights are master weights in float32; `dtype` is that of the forward pass."""

    def __init__(self, student: CausalModel, optimizer: Optimizer, micro_batch_tokens: int, dtype: torch.dtype):
        self._student, self._config = student, optimizer
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
        rate = warmup_rate(self._config, step)
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.zero_grad(set_to_none=True)
        total = int(rollouts.lengths_B.sum())
        sums: dict[str, float] = {}
        lengths = [len(r.prompt_ids) + int(n) for r, n in zip(rollouts.requests, rollouts.lengths_B, strict=True)]
        for group in micro_batches(lengths, self._micro_batch_tokens):
            for name, value in self._accumulate(rollouts, scores, goal, group, total).items():
                sums[name] = sums.get(name, 0.0) + value
        norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._config.clip)
        self._adamw.step()
        return {**{name: value / total for name, value in sums.items()}, "grad_norm": float(norm), "lr": rate}

    def _accumulate(
        self, rollouts: Rollouts, scores: TeacherScores | None, goal: Objective, group: list[int], total: int
    ) -> dict[str, float]:
        """Add the gradient of one micro-batch to the global mean; returns sums over its tokens."""
        device = self._student.device
        prompts = [rollouts.requests[row].prompt_ids for row in group]
        packed = pack(prompts, [rollouts.response(row) for row in group], device)
        rows = torch.tensor(group, device=device)[packed.rows].cpu()
        positions = packed.positions.cpu()
        with torch.autocast(device.type, self._dtype, enabled=self._dtype != torch.float32):
            log_p = self._log_prob(packed)
        if goal.name == "nll":
            tokens = rollouts.tokens_BT[rows, positions].to(device)
            losses = -log_p.gather(-1, tokens[:, None])[:, 0]
            extra: dict[str, Tensor] = {}
        else:
            assert scores is not None
            support = rollouts.support_ids_BTK[rows, positions].to(device)
            log_q = scores.support_BTK[rows, positions].to(device)
            losses, extra = distillation_losses(log_p, log_q, support, goal)
        (losses.sum() / total).backward()
        return {"loss": float(losses.detach().sum()), **{name: float(value.sum()) for name, value in extra.items()}}

    def _log_prob(self, packed: Packed) -> Tensor:
        hidden = self._student.hidden(packed.ids, packed.attention)[packed.rows, packed.columns]
        return self._student.log_prob(self._student.head(hidden))

    def weights(self) -> dict[str, Tensor]:
        """Detached weights by Hugging Face name, in the forward pass's dtype, on the CPU."""
        return {name: p.detach().to("cpu", self._dtype, copy=True) for name, p in self._parameters.items()}

    def save_model(self, folder: Path) -> None:
        """The model in Hugging Face layout, in the forward pass's dtype."""
        self._student.model.save_pretrained(folder, state_dict=self.weights(), max_shard_size="1TB")

    def save_state(self, folder: Path) -> None:
        """Master weights and AdamW moments: what `load_state` needs to go on exactly."""
        tensors = {f"weight/{name}": p.detach().cpu().contiguous() for name, p in self._parameters.items()}
        for name, parameter in self._parameters.items():
            for key, value in self._adamw.state[parameter].items():
                tensors[f"{key}/{name}"] = value.detach().cpu().contiguous()
        save_file(tensors, folder / MASTER_STATE)

    def load_state(self, folder: Path) -> None:
        """Restore what `save_state` wrote."""
        tensors = load_file(folder / MASTER_STATE)
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(tensors[f"weight/{name}"])
                keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}/{name}" in tensors]
                self._adamw.state[parameter] = {key: self._moment(tensors[f"{key}/{name}"], key) for key in keys}

    def _moment(self, tensor: Tensor, key: str) -> Tensor:
        return tensor if key == "step" else tensor.to(self._student.device)


def distillation_losses(
    log_p: Tensor, log_q: Tensor, support: Tensor, goal: Objective
) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses (N,) from the student's full log p (N, V) and log q on the support (N, K), and masses M and Q (N,).

    For `full`, `support` holds the whole vocabulary.
    """
    log_p_support = log_p.gather(-1, support)
    target = objective.veto_target(log_p_support, log_q, goal.veto_beta) if goal.veto_beta else log_q
    losses = objective.token_loss(goal.name, log_p_support, target)
    masses = {
        "support_mass_student": objective.support_mass(log_p_support.detach()),
        "support_mass_teacher": objective.support_mass(log_q),
    }
    return losses, masses
