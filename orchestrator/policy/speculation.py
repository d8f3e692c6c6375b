"""Samples exactly from any μ by a draft of p: accepts it with min(1, μ/p), else replaces it.

The replacement is a sample of (μ − p)₊, normalised. The result has law μ exactly. Token x comes out
as an accepted draft with probability p(x)·min(1, μ(x)/p(x)) = min(p(x), μ(x)). Drafts are rejected
with probability 1 − Σ min(p, μ) = Σ (μ − p)₊, the normaliser of the residual. A replacement thus
adds (μ(x) − p(x))₊, and min(p, μ) + (μ − p)₊ = μ.

The draft survives with probability Σ min(μ, p) = 1 − TV(μ, p), at least 1 − √(ε/2) inside a KL ball
of radius ε (Pinsker). Decoding in lockstep is this step at one position.

Shapes: B rows (prefixes), V vocabulary rows; uniforms are float64 in [0, 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Verified:
    """The outcome of a verification."""

    tokens: Tensor  # (B,) int64
    accepted: Tensor  # (B,) bool: the draft survived


def sample(log_prob: Tensor, uniform: Tensor) -> Tensor:
    """Inverse-CDF sample per row: log-probabilities (B, V) and uniforms (B,) → ids (B,).

    Rows need not be normalised. The id is the first with cumulative mass above u·total. Sums are in
    float64: tokens without mass are never sampled, and rare ones at their right frequency. A row of
    NaNs gives the last id rather than an invalid one; decoding checks for such rows once a round.
    """
    mass = (log_prob - log_prob.amax(-1, keepdim=True)).exp_()
    cumulative = mass.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # Strictly below the total: the first sum above the point then belongs to a token with mass,
    # even where u·total rounds up to the total.
    point = torch.minimum(uniform[:, None] * total, total.nextafter(torch.zeros_like(total)))
    ids = torch.searchsorted(cumulative, point, right=True)[:, 0]
    return ids.clamp_max_(log_prob.shape[-1] - 1)


def verify(
    log_p: Tensor, log_mu: Tensor, draft: Tensor, u_accept: Tensor, u_residual: Tensor
) -> Verified:
    """Accept each draft (B,) drawn from p, or replace it, so that the outcome has law μ.

    log p and log μ are (B, V) and normalised; the uniforms of acceptance and of the replacement are
    (B,), independent of each other and of the draft.
    """
    log_ratio = log_prob_of(draft, log_mu) - log_prob_of(draft, log_p)
    accepted = u_accept < log_ratio.double().exp()
    rejected = (~accepted).nonzero()[:, 0]
    if not len(rejected):
        return Verified(draft, accepted)
    target = log_mu[rejected].double()
    residual = (target.exp() - log_p[rejected].double().exp()).clamp_min(0.0)
    # Where rounding leaves no residual, μ = p up to rounding and a sample of μ is right.
    empty = residual.sum(-1, keepdim=True) <= 0
    replacement = sample(torch.where(empty, target, residual.log()), u_residual[rejected])
    return Verified(draft.index_copy(0, rejected, replacement), accepted)


def acceptance(log_p: Tensor, log_mu: Tensor) -> Tensor:
    """Σ min(μ, p): probability that a draft survives, (B,)."""
    return torch.minimum(log_p, log_mu).exp().sum(-1)


def kl_divergence(log_a: Tensor, log_b: Tensor) -> Tensor:
    """KL(a‖b) in nats over the last dimension; entries of a may be −inf."""
    a = log_a.exp()
    return torch.where(a > 0, a * (log_a - log_b), 0.0).sum(-1)


def log_prob_of(ids: Tensor, log_prob: Tensor) -> Tensor:
    """log-probability (B,) of one id (B,) in each row (B, V)."""
    return log_prob.gather(-1, ids[:, None])[:, 0]
