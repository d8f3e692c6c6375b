"""Behaviors and objectives as plain data: what samples a rollout and what a step minimises.

There is no torch here, so that plans read them and any engine in any process can be told them. The law of a behavior
is in `policy.laws`, the loss of an objective in the engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from orchestrator.policy.draft_length import least_acceptance


class Behavior(Protocol):
    """What samples a rollout; `policy.laws.law` says with which law."""

    @property
    def needs_teacher(self) -> bool:
        """Whether the teacher is asked while decoding. It decides whether the teacher is resident then."""
        ...

    @property
    def acceptance_guess(self) -> float:
        """How often a student draft is expected to survive: decides the draft length, never the result."""
        ...

    @property
    def measures(self) -> tuple[str, ...]:
        """What its law measures at every prefix while the teacher is asked: columns of `records.columns`."""
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
    """SKD with γ = 1: a drafted token outside the teacher's top K is replaced by a teacher sample (Appendix A.2)."""

    top_k: int
    tau: float
    needs_teacher = True
    acceptance_guess = 0.95  # not bounded; replaced tokens are few (the paper reports 0.0093 at the first step)
    measures = ("replaced",)


@dataclass(frozen=True)
class Objective:
    """What is minimised: a member of the reverse-KL family, or `nll` on the tokens (SFT)."""

    name: str
    veto_beta: float = 0.0
