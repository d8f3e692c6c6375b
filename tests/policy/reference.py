"""Plain float64 references that share no code with the package; one prefix at a time, distributions
are (V,) arrays.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
PAPER_BUDGETS = (0.001, 0.005, 0.01, 0.02, 0.05)


def exact(log_prob: Tensor) -> Array:
    """log of the distribution behind (V,) log-probabilities of any precision, normalised in
    float64.
    """
    return normalised(log_prob.double().numpy())


def normalised(weight: Array) -> Array:
    """log of the distribution ∝ exp(weight), (V,); weights may be −inf, not all of them."""
    shifted = weight - weight.max()
    return shifted - math.log(np.exp(shifted).sum())


def kl(log_a: Array, log_b: Array) -> float:
    """KL(a‖b) in nats, 0·log 0 = 0."""
    inside = log_a > -np.inf
    return float(np.exp(log_a[inside]) @ (log_a[inside] - log_b[inside]))


def blend(log_p: Array, log_q: Array, beta: float) -> Array:
    """log μ_β, μ_β ∝ p^(1−β) q^β for 0 < β ≤ 1, on the support both share (paper, Eq. 2)."""
    shared = (log_p > -np.inf) & (log_q > -np.inf)
    weight = np.full(log_p.shape, -np.inf)
    weight[shared] = (1 - beta) * log_p[shared] + beta * log_q[shared]
    return normalised(weight)


def largest_beta(log_p: Array, log_q: Array, epsilon: float) -> float:
    """max{β ∈ [0,1] : KL(μ_β‖p) ≤ ε} by bisection, 0 where no β > 0 is feasible."""
    if not ((log_p > -np.inf) & (log_q > -np.inf)).any():
        return 0.0
    if kl(blend(log_p, log_q, 1.0), log_p) <= epsilon:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        if middle in (low, high):  # neighbours in float64
            break
        low, high = (
            (middle, high) if kl(blend(log_p, log_q, middle), log_p) <= epsilon else (low, middle)
        )
    return low


def trust_region(log_p: Array, log_q: Array, epsilon: float) -> Array:
    """log μ* of the trust region."""
    beta = largest_beta(log_p, log_q, epsilon)
    return blend(log_p, log_q, beta) if beta > 1e-30 else log_p


def skd(p: Array, q: Array, top_k: int, tau: float) -> Array:
    """Student tokens inside the teacher's top K stay, others become a draw of q^(1/τ), token by
    token.
    """
    ranked = sorted(range(len(q)), key=lambda x: -q[x])
    allowed = {x for x in ranked[:top_k] if q[x] > 0}
    replaced = math.fsum(p[x] for x in range(len(p)) if x not in allowed)
    power = [q[x] ** (1 / tau) for x in range(len(q))]
    return np.array(
        [
            (p[x] if x in allowed else 0.0) + replaced * power[x] / math.fsum(power)
            for x in range(len(p))
        ]
    )


def tempered(p: Array, tau: float) -> Array:
    """p^(1/τ), normalised."""
    return p ** (1 / tau) / (p ** (1 / tau)).sum()


def random_logits(
    seed: int, size: int, spread: float = 1.0, distance: float = 1.0
) -> tuple[Tensor, Tensor]:
    """float64 logits (student's, teacher's), each (V,): spread·N(0,1), and that plus
    distance·N(0,1).
    """
    generator = torch.Generator().manual_seed(seed)
    student = spread * torch.randn(size, generator=generator, dtype=torch.float64)
    return student, student + distance * torch.randn(size, generator=generator, dtype=torch.float64)


def random_pair(
    seed: int,
    size: int,
    spread: float = 1.0,
    distance: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """(log p, log q), each (V,), of `random_logits`, normalised in the precision asked for."""
    student, teacher = random_logits(seed, size, spread, distance)
    return student.to(dtype).log_softmax(-1), teacher.to(dtype).log_softmax(-1)


def logs(*probabilities: float) -> Tensor:
    """(V,) float64 log of the given probabilities, −inf for 0."""
    return torch.tensor(probabilities, dtype=torch.float64).log()
