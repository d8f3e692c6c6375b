"""Behaviors and objectives as plain data, and how many tokens a draft has.

A behavior is the policy that samples rollouts, an objective the loss of a step.

Imports no torch, so that plans can read them and any process can receive them. `policy.laws` has
the law of each behavior, `policy.objective` the losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

# --- chooses γ, the number of tokens that the student drafts before the teacher judges them ---
#
# γ changes the time, never the result. Two functions call `draft_length` here and cap its answer:
#
# - `ModelStore.draft_length` (`engines.torch.engine`) for the torch engine, on a GPU by the memory of
#   a round (`engines.memory.longest_round`);
# - `_draft_length` of `engines.sglang.engine`, by `engines.memory.LONGEST_ROUND`, 16. The memory of
#   a round then limits the requests that run at once (`engines.memory.fitting_round`).
#
# Both pass the behavior's `acceptance_guess`, the teacher's parameters ÷ the
# student's as the ratio of costs, and the rows that are decoded at once. `runtime.draft_length` takes
# the place of the choice, under the caps.


LONGEST_DRAFT = 32
# Positions of a pass at which arithmetic takes as long as reading the weights, in bfloat16:
# FLOP/s ÷ bytes/s of an H100.
BALANCED_ROWS = 300


def draft_length(acceptance_rate: float, cost_ratio: float, arithmetic: float = 0.0) -> int:
    """Return the γ that emits the most tokens per unit of time.

    Each draft survives with probability a = `acceptance_rate` in [0, 1]. A round of γ student steps
    and one teacher pass over γ positions emits 1 + a + … + a^(γ−1) tokens on average. The teacher's
    cost is `cost_ratio` times the student's.

    A pass costs one read of its model's weights, and each further position of the batch adds
    `arithmetic` times that (see `arithmetic_cost`).
    """
    speeds: dict[int, float] = {}
    for length in range(1, LONGEST_DRAFT + 1):
        # Draft number i is emitted if the i before it survive; the first always is, or its
        # replacement.
        emitted = sum(acceptance_rate**position for position in range(length))
        student_passes = length * (1 + arithmetic)
        teacher_pass = cost_ratio * (1 + length * arithmetic)
        speeds[length] = emitted / (student_passes + teacher_pass)
    return max(speeds, key=lambda length: (speeds[length], -length))


def arithmetic_cost(rows: int, on_gpu: bool) -> float:
    """Cost of one position of each of `rows` sequences, in reads of the weights.

    On GPUs it is rows ÷ BALANCED_ROWS. On CPUs it is 0: small models spend their time on calls.
    """
    return rows / BALANCED_ROWS if on_gpu else 0.0


def least_acceptance(epsilon: float) -> float:
    """1 − √(ε/2): Pinsker's bound on the acceptance inside a KL ball of radius ε."""
    return max(0.0, 1 - (epsilon / 2) ** 0.5)


# --- behaviors and objectives as plain data: the policy that samples rollouts, and the loss of a step ---


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
        """Measurements that its law makes at every prefix: columns of `records.log`."""
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
    """SKD with γ = 1: a teacher sample replaces a draft outside the teacher's top K (Appendix A.2)."""

    top_k: int
    tau: float
    needs_teacher = True
    # Not bounded, but few tokens are replaced: the paper reports 0.0093 at the first step.
    acceptance_guess = 0.95
    measures = ("replaced",)


@dataclass(frozen=True)
class Mixture:
    """μ = (1 − w)·p + w·q at every token, 0 < w < 1 (MiniLLM's mixed sampling, 2306.08543)."""

    weight: float
    needs_teacher = True
    measures = ("behavior_kl",)

    @property
    def acceptance_guess(self) -> float:
        return 1 - self.weight  # μ ≥ (1 − w)·p at every token


@dataclass(frozen=True)
class Fusion:
    """μ ∝ p^(1−α)·q^α with the same α in [0, 1] at every prefix: logits averaged with weight α.

    α = 0 is the student and α = 1 the teacher, both with the teacher's scores.
    """

    alpha: float
    needs_teacher = True
    measures = ("behavior_kl",)

    @property
    def acceptance_guess(self) -> float:
        return 1 - self.alpha / 2  # not bounded: it depends on how far the two are apart


@dataclass(frozen=True)
class BatchBudget:
    """μ ∝ p^(1−β)·q^β with the one β at which the mean KL(μ‖p) of a batch's tokens is ε nats.

    The trial solves β (`laws.next_beta`), which lies in (0, 1]; until then `beta` is a first guess.
    """

    epsilon: float
    beta: float = 0.5
    needs_teacher = True
    measures = ("beta", "behavior_kl", "kl_slope")

    @property
    def acceptance_guess(self) -> float:
        # Pinsker's bound is concave in the budget, so it holds for the means of a batch as well.
        return least_acceptance(self.epsilon)


@dataclass(frozen=True)
class TeacherSequences:
    """Each response comes whole from the teacher with probability `share`, else from the student.

    GKD's mixture of data (2306.13649, Algorithm 1), with the teacher's own responses as data.
    `policy.randomness` decides for each sequence by its key.
    """

    share: float
    needs_teacher = True
    measures = ("behavior_kl",)

    @property
    def acceptance_guess(self) -> float:
        return 1 - self.share / 2

    def of(self, uniform: float) -> Fusion:
        """The behavior of the sequence that drew `uniform` in [0, 1)."""
        return Fusion(1.0 if uniform < self.share else 0.0)


# --- objectives: a target, losses against it, and the tokens where each loss counts ---


@dataclass(frozen=True)
class Unchanged:
    """The target is the teacher, q̃ = q."""


@dataclass(frozen=True)
class Bridge:
    """Veto's target q̃ ∝ q·p^β with the student held fixed, 0 ≤ β < 1 (2601.07155)."""

    beta: float


@dataclass(frozen=True)
class Proximal:
    """The mixture q̃ = α·q + (1 − α)·p with the student held fixed, 0 < α ≤ 1."""

    alpha: float


@dataclass(frozen=True)
class ReverseKL:
    """KL(p‖q̃), in the form that the objective's name gives."""


@dataclass(frozen=True)
class ForwardKL:
    """KL(q̃‖p)."""


@dataclass(frozen=True)
class JensenShannon:
    """β·KL(q̃‖m) + (1 − β)·KL(p‖m) with m = β·q̃ + (1 − β)·p, 0 < β < 1 (GKD, 2306.13649, eq. 1).

    Divided by β it tends to KL(q̃‖p) for β → 0; divided by 1 − β, to KL(p‖q̃) for β → 1.
    """

    beta: float


@dataclass(frozen=True)
class SampledToken:
    """Policy gradient of the sampled token y with the fixed advantage A = log q(y) − log p(y).

    Its value log p(y) − log q(y) is the k1 estimate of KL(p‖q). With `clip`, A is cut to ± `clip`.
    """

    clip: float | None = None


Target = Unchanged | Bridge | Proximal
Divergence = ReverseKL | ForwardKL | JensenShannon
Loss = Divergence | SampledToken


@dataclass(frozen=True)
class Everywhere:
    """1 at every token."""


@dataclass(frozen=True)
class TeacherUncertain:
    """1 where the teacher's entropy H(q) is above `nats`, else 0; `inverted` exchanges the two."""

    nats: float
    inverted: bool = False


@dataclass(frozen=True)
class TeacherKeeps:
    """min(1, q(y)/p(y)) at the sampled token y, or 1 minus that if `inverted`.

    This is the probability that speculative decoding from the teacher keeps the token, and the mean
    of the random mask by which TrOPD tells trusted tokens from outliers (2606.01249, section 3).
    """

    inverted: bool = False


@dataclass(frozen=True)
class TeacherPrefers:
    """1 where log q(y) > log p(y) at the sampled token y, else 0; `inverted` exchanges the two."""

    inverted: bool = False


@dataclass(frozen=True)
class FallingWithDiscrepancy:
    """1 + (`most` − 1)·(1 − F) with F the share of the response's discrepancy before the token.

    F = Σ_{k<t} |log q − log p| ÷ Σ_k |log q − log p| over the sampled tokens (IW-OPD, 2606.22600).
    """

    most: float


# A weight for each response token, from numbers that sampling and scoring recorded:
# `policy.objective.weigh` computes it. It has no gradient.
TokenWeight = Everywhere | TeacherUncertain | TeacherKeeps | TeacherPrefers | FallingWithDiscrepancy


@dataclass(frozen=True)
class Term:
    """A part of an objective: a loss, and the tokens at which it counts."""

    loss: Loss = ReverseKL()
    where: TokenWeight = Everywhere()


@dataclass(frozen=True)
class Objective:
    """The loss of a step: the sum of `terms` against a `target`, or `nll` on the tokens (SFT).

    `name` says which outcomes the divergences compare (`policy.objective`): the support's ids
    renormalised, with the rest as one more outcome, truncated, or the whole vocabulary. The mean
    goes over all response tokens, also over those that a term leaves out.
    """

    name: str
    target: Target = Unchanged()
    terms: tuple[Term, ...] = (Term(),)

    @property
    def on_support(self) -> bool:
        """Whether the logits of the support's ids are all that the loss needs."""
        divergences = all(isinstance(term.loss, Divergence) for term in self.terms)
        return self.name == "renormalized" and divergences

    @property
    def needs_teacher(self) -> bool:
        """Whether the loss depends on the teacher's scores; a step without them saves a pass."""
        return self.name != "nll"
