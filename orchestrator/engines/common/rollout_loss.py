"""The loss of every trainer: the objective on response tokens, from hidden states and an LM head.

Shapes: N response tokens of a micro-batch, flattened; H hidden; V vocabulary rows; K support ids.
The trainer passes the head, and alone knows how the model is spread over devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestrator.engines.common.head_loss import summed_loss
from orchestrator.policy import objective
from orchestrator.policy.spec import Divergence, Everywhere, Objective
from orchestrator.policy.token_weights import Recorded, discrepancy_before, weigh
from orchestrator.policy.vocabulary import NEG_INF, TokenSpace
from orchestrator.rollouts import Rollouts, TeacherScores

MASS_SAMPLE = 512  # tokens of a micro-batch on which M is measured


@dataclass(frozen=True)
class Targets:
    """Training targets of the N tokens of a micro-batch; without a teacher for `nll`."""

    tokens: Tensor  # (N,)
    support: Tensor  # (N, K)
    log_q: Tensor | None = None  # (N, K)
    recorded: Recorded | None = None  # each (N,)

    @staticmethod
    def gather(
        rollouts: Rollouts, scores: TeacherScores | None, rows: Tensor, positions: Tensor
    ) -> Targets:
        """Gather the targets at `positions` (N,) of the responses `rows` (N,)."""
        at = rows, positions
        tokens = rollouts.tokens_BT[at]
        support = rollouts.support_ids_BTK[at]
        if scores is None:
            return Targets(tokens, support)
        log_p = rollouts.student_BT
        log_q = scores.token_BT
        # A sum over all earlier tokens of a response, so it takes whole rows and not the targets.
        before = discrepancy_before(log_p, log_q, rollouts.mask_BT)
        recorded = Recorded(log_p[at], log_q[at], scores.entropy_BT[at], positions, before[at])
        return Targets(tokens, support, scores.support_BTK[at], recorded)

    def to(self, device: torch.device) -> Targets:
        """The same on another device."""
        return self._each(lambda values: values.to(device))

    def part(self, part: slice) -> Targets:
        """Some of the tokens."""
        return self._each(lambda values: values[part])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Targets:
        tokens = change(self.tokens)
        support = change(self.support)
        if self.log_q is None or self.recorded is None:
            return Targets(tokens, support)
        recorded = Recorded(*map(change, vars(self.recorded).values()))
        return Targets(tokens, support, change(self.log_q), recorded)


def summed_objective(
    hidden: Tensor, head: Tensor, targets: Targets, goal: Objective, space: TokenSpace
) -> Tensor:
    """Σ of the objective over the N tokens, differentiable in hidden (N, H) and head (V, H).

    No temporary is as large as tokens × vocabulary; see `head_loss`.
    """
    if goal.on_support:
        # p̄ is the softmax of the support's logits; other logits are not needed.
        masked = space.is_masked(targets.support)

        def on_support(logits: Tensor, part: slice) -> Tensor:
            log_p = logits.masked_fill(masked[part], NEG_INF)
            return support_losses(log_p, None, targets.part(part), goal)

        return summed_loss(hidden, head, targets.support, on_support)

    def on_vocabulary(logits: Tensor, part: slice) -> Tensor:
        return full_losses(space.student_log_prob(logits), targets.part(part), goal)

    return summed_loss(hidden, head, None, on_vocabulary)


@torch.no_grad()
def summed_masses(
    hidden: Tensor, head: Tensor, targets: Targets, space: TokenSpace
) -> dict[str, float]:
    """Σ over tokens of the support's masses, M of the student and Q of the teacher.

    Empty without a teacher. M is scaled up from an even subsample of the tokens, since only M needs
    logits over the full vocabulary. `head` has the dtype of `hidden`.
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
    of_tokens = log_p.gather(-1, targets.tokens[:, None])[:, 0]
    if goal.name == "nll":
        return -of_tokens
    return support_losses(log_p.gather(-1, targets.support), of_tokens, targets, goal)


def support_losses(
    log_p: Tensor, of_tokens: Tensor | None, targets: Targets, goal: Objective
) -> Tensor:
    """Losses (N,) from log p on the support (N, K), and from the sampled tokens' log p (N,).

    A goal that is `on_support` needs no log p of the tokens. It renormalises log p on the support,
    so that a constant may be added to a token's log p: raw logits serve as well.
    """
    assert targets.log_q is not None
    assert targets.recorded is not None
    target = objective.target_of(goal.target, goal.name, log_p, targets.log_q)
    total = None
    for term in goal.terms:
        if isinstance(term.loss, Divergence):
            losses = objective.token_loss(goal.name, log_p, target, term.loss)
        else:
            assert of_tokens is not None
            losses = objective.sampled_loss(term.loss, of_tokens, targets.recorded.log_q)
        if not isinstance(term.where, Everywhere):
            losses = losses * weigh(term.where, targets.recorded)
        if term.factor != 1:
            losses = term.factor * losses
        total = losses if total is None else total + losses
    assert total is not None
    return total
