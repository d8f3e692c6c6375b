"""Judges the drafts of a decoding round, and computes the recorded values of its emitted tokens.

The torch and SGLang engines share it: each runs the models itself.

Shapes: B active rows, γ drafts, V vocabulary rows, N emitted positions of a round.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from orchestrator.engines.common.record import Kept
from orchestrator.policy import laws, speculation
from orchestrator.policy.spec import Behavior
from orchestrator.rollouts import SURVIVED, TeacherScores


@dataclass(frozen=True)
class Round:
    """A judged round: of the `tokens` (B, γ) of each active row the first `count` (B,) are emitted."""

    tokens: Tensor
    count: Tensor
    accepted: Tensor  # (B,) drafts that survived
    log_p: Tensor  # (B, γ, V)
    log_mu: Tensor  # (B, γ, V)
    log_q: Tensor | None  # (B, γ, V)
    measured: dict[str, Tensor]  # each (B, γ)


def judge(
    behavior: Behavior,
    drafts: Tensor,
    log_p: Tensor,
    log_q: Tensor,
    u_accept: Tensor,
    u_residual: Tensor,
    start: Tensor,
) -> Round:
    """Judge the student's drafts (B, γ), so that emitted tokens have the behavior's law exactly.

    log p and log q (B, γ, V) are the distributions at the prefixes of the drafts; the uniforms of
    acceptance and replacement are (B, γ). `start` (B,) are the positions of the first drafts in
    their responses.
    """
    flat_p, flat_q = log_p.flatten(0, 1), log_q.flatten(0, 1)
    positions = start[:, None] + torch.arange(drafts.shape[1], device=start.device)
    law = laws.law_at(behavior, flat_p, flat_q, positions.flatten())
    verified = speculation.verify(
        flat_p, law.log_mu, drafts.flatten(), u_accept.flatten(), u_residual.flatten()
    )
    # Drafts before the first rejected one. The round also emits that one's replacement. Without a
    # rejection, the token after the last draft is left to the next round.
    survivors = verified.accepted.view_as(drafts).long().cumprod(-1).sum(-1)
    return Round(
        tokens=verified.tokens.view_as(drafts),
        count=(survivors + 1).clamp_max(drafts.shape[1]),
        accepted=survivors,
        log_p=log_p,
        log_mu=law.log_mu.view_as(log_p),
        log_q=log_q,
        measured={name: value.float().view_as(drafts) for name, value in law.measured.items()},
    )


def kept_of(done: Round, row: Tensor, offset: Tensor, top_k: int) -> Kept:
    """The values to record of N emitted positions (row, offset), with `top_k` support ids."""
    tokens = done.tokens[row, offset]
    log_p = done.log_p[row, offset]
    log_mu = done.log_mu[row, offset]
    measured = {name: value[row, offset] for name, value in done.measured.items()}
    if done.log_q is not None:
        measured[SURVIVED] = (offset < done.accepted[row]).float()
        measured["acceptance"] = speculation.acceptance(log_p, log_mu).float()
        if "behavior_kl" not in measured:
            measured["behavior_kl"] = speculation.kl_divergence(log_mu, log_p).float()
    support_ids = log_p.topk(top_k, dim=-1).indices if top_k else None
    teacher = None
    if support_ids is not None and done.log_q is not None:
        teacher = teacher_statistics(done.log_q[row, offset], tokens, support_ids)
    student = speculation.log_prob_of(tokens, log_p)
    behavior = speculation.log_prob_of(tokens, log_mu)
    return Kept(tokens, student, behavior, measured, support_ids, teacher)


def teacher_statistics(log_q: Tensor, tokens: Tensor, support: Tensor) -> TeacherScores:
    """The teacher's statistics, (N,) and (N, K): from log q (N, V), tokens (N,), support (N, K)."""
    own = log_q.topk(support.shape[-1], dim=-1).indices
    q = log_q.exp()
    return TeacherScores(
        support_BTK=log_q.gather(-1, support),
        token_BT=speculation.log_prob_of(tokens, log_q),
        # 0·log 0 is 0, where q * log_q would be nan.
        entropy_BT=-torch.where(q > 0, q * log_q, 0.0).sum(-1),
        overlap_BT=(support[:, :, None] == own[:, None, :]).any(-1).float().mean(-1),
    )
