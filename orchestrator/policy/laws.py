"""The law of each behavior: the student's log p and the teacher's log q at a prefix → log μ.

Sources: for the trust region Section 4 of the paper, for teacher injection SKD (Appendix A.2) with
γ = 1, for the temperature Appendix A.2.

Shapes: B rows (prefixes), V vocabulary rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import singledispatch

import torch
from torch import Tensor

from orchestrator.policy import speculation, trust_region
from orchestrator.policy.spec import (
    Fusion,
    Mixture,
    Student,
    TeacherInjection,
    TeacherPrefix,
    Tempered,
    TrustRegion,
)
from orchestrator.policy.vocabulary import NEG_INF


@dataclass(frozen=True)
class Law:
    """log μ of each row, and measurements, (B,) each, that are logged as means over tokens."""

    log_mu: Tensor  # (B, V)
    measured: dict[str, Tensor] = field(default_factory=dict)


@singledispatch
def law(behavior: object, log_p: Tensor, log_q: Tensor | None) -> Law:
    """log μ from log p (B, V) and, where the behavior needs the teacher, log q (B, V).

    A new behavior registers its law with `@law.register`.
    """
    raise TypeError(f"no law is registered for {type(behavior).__name__}")


def law_at(behavior: object, log_p: Tensor, log_q: Tensor, positions: Tensor) -> Law:
    """The law of each row at its position (B,) in its response; see `law`."""
    if not isinstance(behavior, TeacherPrefix):
        return law(behavior, log_p, log_q)
    inside = (positions < behavior.tokens)[:, None]
    log_mu = torch.where(inside, log_q, log_p)
    return Law(log_mu, {"behavior_kl": speculation.kl_divergence(log_mu, log_p)})


@law.register
def student_law(behavior: Student, log_p: Tensor, log_q: Tensor | None) -> Law:
    """μ = p."""
    return Law(log_p)


@law.register
def tempered_law(behavior: Tempered, log_p: Tensor, log_q: Tensor | None) -> Law:
    """μ ∝ p^(1/τ)."""
    return Law((log_p / behavior.tau).log_softmax(-1))


@law.register
def trust_region_law(behavior: TrustRegion, log_p: Tensor, log_q: Tensor | None) -> Law:
    """μ ∝ p^(1−β) q^β with the largest β in [0, 1] that keeps KL(μ‖p) ≤ ε."""
    assert log_q is not None
    solved = trust_region.solve(log_p, log_q, behavior.epsilon)
    feasible = solved.teacher_feasible.to(log_p.dtype)
    return Law(
        solved.log_mu, {"beta": solved.beta, "teacher_feasible": feasible, "behavior_kl": solved.kl}
    )


@law.register
def teacher_injection_law(behavior: TeacherInjection, log_p: Tensor, log_q: Tensor | None) -> Law:
    """SKD: μ(x) = p(x)·1[x ∈ TopK(q)] + (1 − p(TopK(q)))·q_τ(x).

    q_τ ∝ q^(1/τ) over the full vocabulary.
    """
    assert log_q is not None
    top = log_q.topk(min(behavior.top_k, log_q.shape[-1]), dim=-1)
    # Ids without teacher mass may be among the top k of a small vocabulary: they are not allowed.
    has_mass = top.values > NEG_INF
    allowed = torch.zeros_like(log_p, dtype=torch.bool).scatter(-1, top.indices, has_mass)
    kept = torch.where(allowed, log_p, NEG_INF)
    replaced = torch.where(allowed, 0.0, log_p.exp()).sum(-1)
    log_resampled = replaced.log()[:, None] + (log_q / behavior.tau).log_softmax(-1)
    return Law(torch.logaddexp(kept, log_resampled), {"replaced": replaced})


@law.register
def mixture_law(behavior: Mixture, log_p: Tensor, log_q: Tensor | None) -> Law:
    """μ = (1 − w)·p + w·q."""
    assert log_q is not None
    weighted = log_q + math.log(behavior.weight)
    log_mu = torch.logaddexp(log_p + math.log1p(-behavior.weight), weighted)
    return Law(log_mu, {"behavior_kl": speculation.kl_divergence(log_mu, log_p)})


@law.register
def fusion_law(behavior: Fusion, log_p: Tensor, log_q: Tensor | None) -> Law:
    """μ ∝ p^(1−α)·q^α; ids that either model excludes have no mass between the two ends."""
    assert log_q is not None
    match behavior.alpha:
        # The ends apart, since 0 · −inf is NaN.
        case 0.0:
            log_mu = log_p
        case 1.0:
            log_mu = log_q
        case alpha:
            log_mu = ((1 - alpha) * log_p + alpha * log_q).log_softmax(-1)
    return Law(log_mu, {"behavior_kl": speculation.kl_divergence(log_mu, log_p)})
