"""Behavior policies: the law that samples each rollout token, and its schedule over optimizer steps.

A law maps the student's log p and the teacher's log q at a prefix to log μ. Sources: trust region — paper,
Section 4; teacher injection — SKD (paper, Appendix A.2) with γ = 1; temperature — paper, Appendix A.2.

Shapes: B rows (prefixes), V vocabulary rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from orchestrator import methods
from orchestrator.policy import speculation, trust_region


@dataclass(frozen=True)
class Law:
    """log μ of each row, and per-row measurements (each (B,)) that are logged as means over tokens."""

    log_mu: Tensor  # (B, V)
    measured: dict[str, Tensor] = field(default_factory=dict)


class Behavior(Protocol):
    """What samples a rollout. `needs_teacher` decides whether the teacher is resident while decoding."""

    @property
    def needs_teacher(self) -> bool: ...

    @property
    def acceptance_guess(self) -> float:
        """How often a student draft is expected to survive: decides the draft length, never the result."""
        ...

    def law(self, log_p: Tensor, log_q: Tensor | None) -> Law:
        """log μ from log p (B, V) and, where needed, log q (B, V)."""
        ...


@dataclass(frozen=True)
class Student:
    """μ = p."""

    needs_teacher = False
    acceptance_guess = 1.0

    def law(self, log_p: Tensor, log_q: Tensor | None) -> Law:
        return Law(log_p)


@dataclass(frozen=True)
class Tempered:
    """μ ∝ p^(1/τ), τ > 0."""

    tau: float
    needs_teacher = False
    acceptance_guess = 1.0

    def law(self, log_p: Tensor, log_q: Tensor | None) -> Law:
        return Law((log_p / self.tau).log_softmax(-1))


@dataclass(frozen=True)
class TrustRegion:
    """The policy closest to the teacher with KL(μ‖p) ≤ ε nats at every prefix."""

    epsilon: float
    needs_teacher = True

    @property
    def acceptance_guess(self) -> float:
        return speculation.least_acceptance(self.epsilon)

    def law(self, log_p: Tensor, log_q: Tensor | None) -> Law:
        assert log_q is not None
        solved = trust_region.solve(log_p, log_q, self.epsilon)
        feasible = solved.teacher_feasible.to(log_p.dtype)
        return Law(solved.log_mu, {"beta": solved.beta, "teacher_feasible": feasible, "behavior_kl": solved.kl})


@dataclass(frozen=True)
class TeacherInjection:
    """SKD with γ = 1: a drafted token outside the teacher's top K is replaced by a teacher sample.

    μ(x) = p(x)·1[x ∈ TopK(q)] + (1 − p(TopK(q)))·q_τ(x), q_τ ∝ q^(1/τ) over the full vocabulary.
    """

    top_k: int
    tau: float
    needs_teacher = True
    acceptance_guess = 0.95  # not bounded; replaced tokens are few (the paper reports 0.0093 at the first step)

    def law(self, log_p: Tensor, log_q: Tensor | None) -> Law:
        assert log_q is not None
        top = log_q.topk(min(self.top_k, log_q.shape[-1]), dim=-1)
        allowed = torch.zeros_like(log_p, dtype=torch.bool).scatter(-1, top.indices, top.values > trust_region.NEG_INF)
        kept = torch.where(allowed, log_p, trust_region.NEG_INF)
        replaced = torch.where(allowed, 0.0, log_p.exp()).sum(-1)
        log_resampled = replaced.log()[:, None] + (log_q / self.tau).log_softmax(-1)
        return Law(torch.logaddexp(kept, log_resampled), {"replaced": replaced})


def behavior_at(method: str | None, knobs: dict[str, Any], step: int) -> Behavior:
    """The behavior policy of optimizer step k ≥ 0 (steps count from 0)."""
    behavior = _behavior_at(method, knobs, step)
    asked = methods.needs_teacher(method, knobs, step)
    assert behavior.needs_teacher == asked, (
        f"methods.NEEDS_TEACHER[{method!r}] is {asked} at step {step}: plan and law differ"
    )
    return behavior


def _behavior_at(method: str | None, knobs: dict[str, Any], step: int) -> Behavior:
    match method:
        case "trust_region":
            epsilon = annealed_budget(knobs["epsilon0"], knobs["K"], step)
            return TrustRegion(epsilon) if epsilon > 0 else Student()
        case "fixed_epsilon":
            return TrustRegion(knobs["epsilon"]) if knobs["epsilon"] > 0 else Student()
        case "skd":
            return TeacherInjection(knobs["K"], knobs["tau_T"])
        case "temperature_warmup":
            tau = annealed_temperature(knobs["tau0"], knobs["E"], step)
            return Tempered(tau) if tau != 1 else Student()
        case _:
            return Student()


def annealed_budget(epsilon0: float, horizon: int, step: int) -> float:
    """ε_k = ε0(1 − k/K) for k < K, then exactly 0 (paper, Section 4.3)."""
    return epsilon0 * (1 - step / horizon) if step < horizon else 0.0


def annealed_temperature(tau0: float, horizon: int, step: int) -> float:
    """τ_k = τ0 + (1 − τ0)·k/E for k < E, then exactly 1."""
    return tau0 + (1 - tau0) * step / horizon if step < horizon else 1.0


def annealed_veto(beta_start: float, total_steps: int, step: int) -> float:
    """β_k = β_start(1 − k/N) over the whole run (Veto, 2601.07155)."""
    return beta_start * (1 - step / total_steps)
