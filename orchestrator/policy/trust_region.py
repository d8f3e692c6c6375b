"""The policy closest to the teacher inside a KL ball around the student (paper, Eq. 1–2, Appendix "Derivation").

μ_β ∝ p^(1−β) q^β and β* = max{β ∈ [0,1] : KL(μ_β‖p) ≤ ε}. With r = log q − log p and
A(β) = log Σ p e^{βr}: KL(μ_β‖p) = βA'(β) − A(β), whose derivative is β·Var_{μ_β}[r] ≥ 0.

Shapes: B rows (prefixes), V vocabulary rows. Entries may be −inf.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NEG_INF = float("-inf")
_ITERATIONS = 60
# How far below ε the search may stop, relative to ε: what the precision of KL allows.
_SLACK = {torch.float32: 1e-4, torch.float64: 1e-9}


@dataclass(frozen=True)
class Tilt:
    """μ_β of each row with its first two moments of r and its divergence from the student."""

    log_mu: Tensor  # (B, V)
    kl: Tensor  # (B,) KL(μ_β‖p) in nats
    variance: Tensor  # (B,) Var_{μ_β}[r]


@dataclass(frozen=True)
class Solution:
    """The trust-region policy of each row."""

    log_mu: Tensor  # (B, V)
    beta: Tensor  # (B,) in [0, 1]
    kl: Tensor  # (B,) KL(μ‖p) in nats
    teacher_feasible: Tensor  # (B,) bool: KL(q‖p) ≤ ε


def tilt(log_p: Tensor, log_q: Tensor, beta: Tensor) -> Tilt:
    """μ_β for β of shape (B,) in [0, 1].

    On p's support only; β = 0 is p itself, also where the teacher has no mass.
    """
    ratio = torch.where(log_p == NEG_INF, 0.0, log_q - log_p)
    power = torch.where((beta == 0)[:, None], 0.0, beta[:, None] * ratio)
    log_weight = log_p + power
    log_mass = log_weight.logsumexp(-1, keepdim=True)
    empty = log_mass == NEG_INF  # the teacher has no mass where the student has: no such policy exists
    log_mu = torch.where(empty, log_p, log_weight - torch.where(empty, 0.0, log_mass))
    mu = log_mu.exp()
    inside = mu > 0
    kl = torch.where(inside, mu * (log_mu - log_p), 0.0).sum(-1).clamp_min(0.0)
    kl = torch.where(empty[:, 0], float("inf"), kl)
    r = torch.where(inside & (ratio > NEG_INF), ratio, 0.0)
    mean = (mu * r).sum(-1, keepdim=True)
    variance = (mu * (r - mean).square()).sum(-1)
    return Tilt(log_mu, kl, variance)


def solve(log_p: Tensor, log_q: Tensor, epsilon: float) -> Solution:
    """β* and μ* of every row for the budget ε ≥ 0, in the precision of the inputs.

    Newton's method on √(2·KL), which is nearly linear in β, kept inside a bracket by bisection. The result
    always lies in the ball: KL(μ‖p) ≤ ε up to rounding.
    """
    ones = torch.ones(log_p.shape[:-1], dtype=log_p.dtype, device=log_p.device)
    if epsilon == 0:
        return _at(log_p, log_q, torch.zeros_like(ones), torch.zeros_like(ones, dtype=torch.bool))
    at_teacher = tilt(log_p, log_q, ones)
    log_outside = torch.where(log_p == NEG_INF, log_q, NEG_INF).logsumexp(-1)
    feasible = (at_teacher.kl <= epsilon) & (log_outside == NEG_INF)
    inner = at_teacher.kl <= epsilon  # the teacher restricted to p's support is in the ball: the end of the path
    beta = torch.where(inner, ones, _search(log_p, log_q, epsilon, inner))
    return _at(log_p, log_q, beta, feasible)


def _search(log_p: Tensor, log_q: Tensor, epsilon: float, done: Tensor) -> Tensor:
    """Largest β found feasible for the rows that are not `done`; the bracket [low, high] always holds β*."""
    low = torch.zeros_like(done, dtype=log_p.dtype)
    high = torch.ones_like(low)
    slack, tiny = _SLACK[log_p.dtype], 4 * torch.finfo(log_p.dtype).eps
    target = (2 * epsilon * (1 - slack / 2)) ** 0.5
    at_student = tilt(log_p, log_q, low)
    beta = _inside(low, high, target / at_student.variance.sqrt())
    for _ in range(_ITERATIONS):
        if bool(done.all()):
            break
        point = tilt(log_p, log_q, beta)
        fits = point.kl <= epsilon
        low, high = torch.where(fits, beta, low), torch.where(fits, high, beta)
        done = done | (fits & (point.kl >= epsilon * (1 - slack))) | (high - low <= tiny * high)
        root = (2 * point.kl).sqrt()
        slope = beta * point.variance / root
        beta = torch.where(done, low, _inside(low, high, beta + (target - root) / slope))
    return low


def _inside(low: Tensor, high: Tensor, guess: Tensor) -> Tensor:
    """`guess` where it falls strictly inside the bracket, else its middle (NaN too)."""
    return torch.where((guess > low) & (guess < high), guess, (low + high) / 2)


def _at(log_p: Tensor, log_q: Tensor, beta: Tensor, feasible: Tensor) -> Solution:
    point = tilt(log_p, log_q, beta)
    log_mu = torch.where(feasible[:, None], log_q, point.log_mu)
    untouched = (beta == 0)[:, None]  # exactly p, not p up to the rounding of its normaliser
    return Solution(torch.where(untouched, log_p, log_mu), beta, point.kl, feasible)
