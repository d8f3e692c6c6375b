"""Behaviors and objectives as plain data: the policy that samples rollouts, and the loss of a step.

Imports no torch, so that plans can read them and any process can receive them. `policy.laws` has
the law of each behavior, `policy.objective` the losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from orchestrator.policy.draft_length import least_acceptance


class Behavior(Protocol):
    """A policy that samples rollouts; `policy.laws.law` computes its law."""

    @property
    def needs_teacher(self) -> bool:
        """Whether decoding asks the teacher, and so needs it resident."""
        ...

    @property
    def acceptance_guess(self) -> float:
        """Expected acceptance of a student draft: decides the draft length, never the result."""
        ...

    @property
    def measures(self) -> tuple[str, ...]:
        """Measurements that its law makes at every prefix: columns of `records.columns`."""
        ...


@dataclass(frozen=True)
class Student:
    """μ = p."""

    needs_teacher = False
    acceptance_guess = 1.0
    measures = ()


@dataclass(frozen=True)
class Tempered:
    """μ ∝ p^(1/τ), τ > 0 (paper, Appendix A.2)."""

    tau: float
    needs_teacher = False
    acceptance_guess = 1.0
    measures = ()


@dataclass(frozen=True)
class TrustRegion:
    """The policy closest to the teacher with KL(μ‖p) ≤ ε nats at every prefix (paper, Section 4)."""

    epsilon: float
    needs_teacher = True
    measures = ("beta", "teacher_feasible", "behavior_kl")

    @property
    def acceptance_guess(self) -> float:
        return least_acceptance(self.epsilon)


@dataclass(frozen=True)
class TeacherInjection:
    """SKD with γ = 1: a drafted token outside the teacher's top K is replaced by a teacher sample
    (Appendix A.2).
    """

    top_k: int
    tau: float
    needs_teacher = True
    acceptance_guess = (
        0.95  # not bounded; replaced tokens are few (the paper reports 0.0093 at the first step)
    )
    measures = ("replaced",)


@dataclass(frozen=True)
class Objective:
    """The loss of a step: a member of the reverse-KL family, or `nll` on the tokens (SFT)."""

    name: str
    veto_beta: float = 0.0
