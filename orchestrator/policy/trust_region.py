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
class Solution:
    """The trust-region policy of each row."""

    log_mu: Tensor  # (B, V)
    beta: Tensor  # (B,) in [0, 1]
    kl: Tensor  # (B,) KL(μ‖p) in nats
    teacher_feasible: Tensor  # (B,) bool: KL(q‖p) ≤ ε


def solve(log_p: Tensor, log_q: Tensor, epsilon: float) -> Solution:
    """β* and μ* of every row for the budget ε ≥ 0, in the precision of the inputs.

    Newton's method on √(2·KL), which is nearly linear in β, kept inside a bracket by bisection. The result
    always lies in the ball: KL(μ‖p) ≤ ε up to rounding.
    """
    zeros = torch.zeros(log_p.shape[:-1], dtype=log_p.dtype, device=log_p.device)
    if epsilon == 0:
        return Solution(log_p, zeros, zeros, torch.zeros_like(zeros, dtype=torch.bool))
    path = _Path.between(log_p, log_q)
    at_teacher = path.moments(torch.ones_like(zeros))
    inner = at_teacher.kl <= epsilon  # the teacher restricted to p's support is in the ball: the end of the path
    log_outside = torch.where(log_p == NEG_INF, log_q, NEG_INF).amax(-1)
    feasible = inner & (log_outside == NEG_INF)
    beta, kl = torch.ones_like(zeros), at_teacher.kl.clone()
    searched = (~inner).nonzero()[:, 0]
    if len(searched):
        beta[searched], kl[searched] = _search(path.rows(searched), epsilon)
    log_mu = path.log_mu(beta)
    log_mu = torch.where((beta == 0)[:, None], log_p, log_mu)  # exactly p, not p up to rounding
    return Solution(torch.where(feasible[:, None], log_q, log_mu), beta, kl, feasible)


@dataclass(frozen=True)
class _Moments:
    """At one β of each row, (B,): KL(μ_β‖p), Var_{μ_β}[r] and the log-normaliser A(β)."""

    kl: Tensor
    variance: Tensor
    log_mass: Tensor


@dataclass(frozen=True)
class _Path:
    """The family μ_β, β > 0, of each row: p's log-probabilities where both policies have mass, and r there.

    r is centred by its mean under p, which changes neither μ nor KL but leaves both terms of KL small.
    """

    log_p: Tensor  # (B, V), −inf where either policy has no mass
    ratio: Tensor  # (B, V), 0 where either policy has no mass

    @staticmethod
    def between(log_p: Tensor, log_q: Tensor) -> _Path:
        common = (log_p > NEG_INF) & (log_q > NEG_INF)
        base = torch.where(common, log_p, NEG_INF)
        ratio = torch.where(common, log_q - log_p, 0.0)
        mass = base.exp()
        mean = _dot(mass, ratio) / mass.sum(-1).clamp_min(torch.finfo(mass.dtype).tiny)
        return _Path(base, torch.where(common, ratio - mean[:, None], 0.0))

    def rows(self, index: Tensor) -> _Path:
        """The path of some rows."""
        return self if len(index) == len(self.log_p) else _Path(self.log_p[index], self.ratio[index])

    def moments(self, beta: Tensor) -> _Moments:
        """Moments at β (B,) in (0, 1], or just above 0 where β = 0; KL is infinite where the policies share nothing."""
        weight = torch.addcmul(self.log_p, self.ratio, beta[:, None])
        top = weight.amax(-1, keepdim=True)
        empty = top[:, 0] == NEG_INF
        weight.sub_(top.masked_fill(empty[:, None], 0.0)).exp_()
        # In float64: over 150,000 ids a float32 sum is off by what a KL budget of 1e-3 would notice.
        total = weight.sum(-1, dtype=torch.float64)
        log_mass = (top[:, 0].double() + total.log()).to(beta.dtype)
        total = total.to(beta.dtype)
        tilted = weight.mul_(self.ratio)
        mean = tilted.sum(-1) / total
        variance = (_dot(tilted, self.ratio) / total - mean.square()).clamp_min(0.0)
        kl = torch.where(empty, float("inf"), (beta * mean - log_mass).clamp_min(0.0))
        return _Moments(kl, variance, log_mass)

    def log_mu(self, beta: Tensor) -> Tensor:
        """log μ_β (B, V)."""
        weight = torch.addcmul(self.log_p, self.ratio, beta[:, None])
        return weight.sub_(weight.logsumexp(-1, keepdim=True))


def _search(path: _Path, epsilon: float) -> tuple[Tensor, Tensor]:
    """Largest feasible β found and its KL, for rows in which β = 1 is not feasible."""
    slack, tiny = _SLACK[path.log_p.dtype], 4 * torch.finfo(path.log_p.dtype).eps
    target = (2 * epsilon * (1 - slack / 2)) ** 0.5
    low = torch.zeros(len(path.log_p), dtype=path.log_p.dtype, device=path.log_p.device)
    high, kl = torch.ones_like(low), torch.zeros_like(low)
    open_rows = torch.arange(len(low), device=low.device)
    beta = _inside(low, high, target / path.moments(low).variance.sqrt())
    for _ in range(_ITERATIONS):
        point = path.moments(beta)
        fits = point.kl <= epsilon
        low[open_rows] = torch.where(fits, beta, low[open_rows])
        kl[open_rows] = torch.where(fits, point.kl, kl[open_rows])
        high[open_rows] = torch.where(fits, high[open_rows], beta)
        narrow = high[open_rows] - low[open_rows] <= tiny * high[open_rows]
        left = ~((fits & (point.kl >= epsilon * (1 - slack))) | narrow)
        if not bool(left.any()):
            break
        root = (2 * point.kl).sqrt()
        guess = beta + (target - root) * root / (beta * point.variance)
        keep = left.nonzero()[:, 0]
        path, open_rows, guess = path.rows(keep), open_rows[keep], guess[keep]
        beta = _inside(low[open_rows], high[open_rows], guess)
    return low, kl


def _inside(low: Tensor, high: Tensor, guess: Tensor) -> Tensor:
    """`guess` where it falls strictly inside the bracket, else its middle (NaN too)."""
    return torch.where((guess > low) & (guess < high), guess, (low + high) / 2)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Row-wise inner products without a temporary: (B, V), (B, V) → (B,)."""
    return torch.bmm(a[:, None, :], b[:, :, None])[:, 0, 0]
