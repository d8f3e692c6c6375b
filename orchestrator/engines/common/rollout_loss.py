"""The loss of every trainer: the objective on response tokens, from hidden states and an LM head.

Shapes: N response tokens of a micro-batch, flattened; H hidden; V vocabulary rows; K support ids.
The trainer passes the head, and alone knows how the model is spread over devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from orchestrator.engines.common.head_loss import summed_loss
from orchestrator.policy import objective
from orchestrator.policy.spec import Objective
from orchestrator.policy.vocabulary import NEG_INF, TokenSpace
from orchestrator.rollouts import Rollouts, TeacherScores

MASS_SAMPLE = 512  # tokens of a micro-batch on which M is measured


@dataclass(frozen=True)
class Targets:
    """Training targets of the N tokens of a micro-batch; without a teacher for `nll`."""

    tokens: Tensor  # (N,)
    support: Tensor  # (N, K)
    log_q: Tensor | None  # (N, K)

    @staticmethod
    def gather(
        rollouts: Rollouts, scores: TeacherScores | None, rows: Tensor, positions: Tensor
    ) -> Targets:
        """Gather the targets at `positions` (N,) of the responses `rows` (N,)."""
        return Targets(
            rollouts.tokens_BT[rows, positions],
            rollouts.support_ids_BTK[rows, positions],
            None if scores is None else scores.support_BTK[rows, positions],
        )

    def to(self, device: torch.device) -> Targets:
        """The same on another device."""
        log_q = None if self.log_q is None else self.log_q.to(device)
        return Targets(self.tokens.to(device), self.support.to(device), log_q)

    def part(self, part: slice) -> Targets:
        """Some of the tokens."""
        return Targets(
            self.tokens[part], self.support[part], None if self.log_q is None else self.log_q[part]
        )


def summed_objective(
    hidden: Tensor, head: Tensor, targets: Targets, goal: Objective, space: TokenSpace
) -> Tensor:
    """Σ of the objective over the N tokens, differentiable in hidden (N, H) and head (V, H).

    No temporary is as large as tokens × vocabulary; see `head_loss`.
    """
    if goal.name == "renormalized":
        # p̄ is the softmax of the support's logits; other logits are not needed.
        masked = space.is_masked(targets.support)

        def on_support(logits: Tensor, part: slice) -> Tensor:
            log_p = logits.masked_fill(masked[part], NEG_INF)
            return support_losses(log_p, targets.part(part).log_q, goal)

        return summed_loss(hidden, head, targets.support, on_support)

    def on_vocabulary(logits: Tensor, part: slice) -> Tensor:
        return full_losses(space.student_log_prob(logits), targets.part(part), goal)

    return summed_loss(hidden, head, None, on_vocabulary)


@torch.no_grad()
def summed_masses(
    hidden: Tensor, head: Tensor, targets: Targets, space: TokenSpace
) -> dict[str, float]:
    """Σ over tokens of M and Q; M from an even subsample, since only M needs the full vocabulary.

    Empty without a teacher. `head` has the dtype of `hidden`.
    """
    if targets.log_q is None:
        return {}
    if not len(hidden):
        return {"support_mass_student": 0.0, "support_mass_teacher": 0.0}
    stride = -(-len(hidden) // MASS_SAMPLE)
    log_p = space.student_log_prob(hidden[::stride] @ head.T).gather(-1, targets.support[::stride])
    share = float(objective.support_mass(log_p).mean())
    return {
        "support_mass_student": share * len(hidden),
        "support_mass_teacher": float(objective.support_mass(targets.log_q).sum()),
    }


def full_losses(log_p: Tensor, targets: Targets, goal: Objective) -> Tensor:
    """Losses (N,) from the student's log p over the whole vocabulary (N, V)."""
    if goal.name == "nll":
        return -log_p.gather(-1, targets.tokens[:, None])[:, 0]
    return support_losses(log_p.gather(-1, targets.support), targets.log_q, goal)


def support_losses(log_p: Tensor, log_q: Tensor | None, goal: Objective) -> Tensor:
    """Losses (N,) from log p on the support (N, K); `renormalized` allows a constant per token."""
    assert log_q is not None
    target = objective.veto_target(log_p, log_q, goal.veto_beta) if goal.veto_beta else log_q
    return objective.token_loss(goal.name, log_p, target)
