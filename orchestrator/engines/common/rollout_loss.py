"""The loss of every trainer: the objective on response tokens, from hidden states and an LM head.

Shapes: N response tokens of a micro-batch, flattened; H hidden; V vocabulary rows; K support ids.
The trainer passes the head, and alone knows how the model is spread over devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestrator.engines.common.head_loss import head_logits, summed_loss
from orchestrator.engines.common.packing import response_tokens
from orchestrator.policy import objective
from orchestrator.policy.spec import Divergence, Everywhere, Objective
from orchestrator.policy.token_weights import (
    Recorded,
    discrepancy_before,
    share_less_likely,
    weigh,
)
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.rollouts import Rollouts, TeacherScores

MASS_SAMPLE = 512  # tokens of a micro-batch on which M and the sampler's gap are measured
MEASURED = ("support_mass_student", "support_mass_teacher", "sampler_gap", "sampler_kl")


@dataclass(frozen=True)
class Targets:
    """Training targets of the N tokens of a micro-batch; `log_q` is None without scores."""

    tokens: Tensor  # (N,)
    support: Tensor  # (N, K)
    recorded: Recorded  # each (N,)
    log_mu: Tensor  # (N,) of the tokens, under the policy that sampled them
    log_q: Tensor | None = None  # (N, K)

    @staticmethod
    def gather(rollouts: Rollouts, scores: TeacherScores | None, group: Sequence[int]) -> Targets:
        """Gather the targets at all response tokens of the rows in `group`, row by row."""
        batch_rows = torch.tensor(group, dtype=torch.long)
        log_p = rollouts.student_BT[batch_rows]
        mask = rollouts.mask_BT[batch_rows]
        # Only a loss that needs no teacher comes without scores, and it never reads these.
        log_q = entropy = torch.full_like(log_p, torch.nan)
        if scores is not None:
            log_q, entropy = scores.token_BT[batch_rows], scores.entropy_BT[batch_rows]
        rows, positions = response_tokens(rollouts.lengths_B[batch_rows], range(len(batch_rows)))
        at = batch_rows[rows], positions
        # Both compare a token with the others of its response, so they take whole responses: the
        # result does not depend on how the batch is cut.
        before = discrepancy_before(log_p, log_q, mask)
        less_likely = share_less_likely(log_p, mask)
        recorded = Recorded(
            log_p=log_p[rows, positions],
            log_q=log_q[rows, positions],
            entropy=entropy[rows, positions],
            position=positions,
            before=before[rows, positions],
            less_likely=less_likely[rows, positions],
        )
        support_log_q = None if scores is None else scores.support_BTK[at]
        return Targets(
            rollouts.tokens_BT[at],
            rollouts.support_ids_BTK[at],
            recorded,
            rollouts.behavior_BT[at],
            support_log_q,
        )

    def to(self, device: torch.device) -> Targets:
        """The same on another device."""
        return self._each(lambda values: values.to(device))

    def part(self, part: slice) -> Targets:
        """Some of the tokens."""
        return self._each(lambda values: values[part])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Targets:
        tokens = change(self.tokens)
        support = change(self.support)
        recorded = Recorded(*map(change, vars(self.recorded).values()))
        log_q = None if self.log_q is None else change(self.log_q)
        return Targets(tokens, support, recorded, change(self.log_mu), log_q)


def summed_objective(
    hidden: Tensor, head: Tensor, targets: Targets, goal: Objective, space: TokenSpace
) -> Tensor:
    """Σ of the objective over the N tokens, differentiable in hidden (N, H) and head (V, H).

    No temporary is as large as tokens × vocabulary; see `head_loss`.
    """
    if goal.on_support:
        # p̄ is the softmax of the support's logits; other logits are not needed.
        def on_support(logits: Tensor, part: slice) -> Tensor:
            log_p = space.support_logits(logits, targets.support[part])
            return support_losses(log_p, None, targets.part(part), goal)

        return summed_loss(hidden, head, space.with_others(targets.support), on_support)

    def on_vocabulary(logits: Tensor, part: slice) -> Tensor:
        return full_losses(space.student_log_prob(logits), targets.part(part), goal)

    return summed_loss(hidden, head, None, on_vocabulary)


@dataclass(frozen=True)
class Readings:
    """Measurements of a micro-batch: sums over its tokens by column, and |Δ| of the read tokens.

    Δ is the difference of the sampled token's log p between the learner and the sampler, which hold
    the same weights and differ by rounding.
    """

    sums: dict[str, float]
    gaps: list[float]


@torch.no_grad()
def measure(hidden: Tensor, head: Tensor, targets: Targets, space: TokenSpace) -> Readings:
    """Measure the support's masses, M of the student and Q of the teacher, and the sampler's gap.

    Empty without scores. M and the gap are scaled up from an even subsample of the tokens, since
    only they need logits over the full vocabulary.
    """
    if targets.log_q is None:
        return Readings({}, [])
    if not len(hidden):
        return Readings(dict.fromkeys(MEASURED, 0.0), [])
    stride = -(-len(hidden) // MASS_SAMPLE)
    read = targets.part(slice(None, None, stride))
    log_p = space.student_log_prob(head_logits(hidden[::stride], head))
    share = objective.support_mass(log_p.gather(-1, read.support)).mean()
    gap = (log_p.gather(-1, read.tokens[:, None])[:, 0] - read.recorded.log_p).double()
    # Tokens come from μ, so that the weight p/μ makes the mean one over p: its expectation is the
    # divergence of the sampler's p from the learner's, and no summand is negative (Schulman 2020).
    divergence = (read.recorded.log_p - read.log_mu).double().exp() * (gap.expm1() - gap)
    of_teacher = objective.support_mass(targets.log_q).sum()
    means = [share, of_teacher, gap.abs().mean(), divergence.mean()]
    # One copy to the host, which waits for the device once.
    values = torch.cat([torch.stack([mean.double() for mean in means]), gap.abs()]).cpu().tolist()
    count = len(hidden)
    sums = [values[0] * count, values[1], values[2] * count, values[3] * count]
    return Readings(dict(zip(MEASURED, sums, strict=True)), values[4:])


def largest_gap(gaps: list[float]) -> dict[str, float]:
    """The column of the 99th percentile of |Δ| over a step's read tokens; empty without any."""
    if not gaps:
        return {}
    return {"sampler_gap_p99": float(torch.tensor(gaps, dtype=torch.float64).quantile(0.99))}


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
    assert targets.log_q is not None or not goal.needs_teacher
    target = None
    if targets.log_q is not None:
        target = objective.target_of(goal.target, goal.name, log_p, targets.log_q)
    total = None
    for term in goal.terms:
        if isinstance(term.loss, Divergence):
            assert target is not None
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
