"""The law of each behavior: the student's log p and the teacher's log q at a prefix → log μ.

Sources: for the trust region Section 4 of the paper, for teacher injection SKD (Appendix A.2) with
γ = 1, for the temperature Appendix A.2.

Shapes: B rows (prefixes), V vocabulary rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor

from orchestrator.policy import speculation
from orchestrator.policy.spec import (
    BatchBudget,
    Fusion,
    Mixture,
    Student,
    TeacherInjection,
    Tempered,
    TrustRegion,
)
from orchestrator.policy.vocabulary import NEG_INF

# --- the policy closest to the teacher inside a KL ball around the student ---
#
# The paper has it in Eq. 1–2 and in the Appendix "Derivation":
# μ_β ∝ p^(1−β) q^β and β* = max{β ∈ [0,1] : KL(μ_β‖p) ≤ ε}. With r = log q − log p and
# A(β) = log Σ p e^{βr}: KL(μ_β‖p) = βA'(β) − A(β), whose derivative is β·Var_{μ_β}[r] ≥ 0.
#
# Shapes: B rows (prefixes), V vocabulary rows. Entries may be −inf.


_ITERATIONS = 60
# The search may stop this far below ε, relative to ε; the precision of KL allows no less.
_SLACK = {torch.float32: 1e-4, torch.float64: 1e-9}


@dataclass(frozen=True)
class Solution:
    """The trust-region policy of each row."""

    log_mu: Tensor  # (B, V)
    beta: Tensor  # (B,) in [0, 1]
    kl: Tensor  # (B,) KL(μ‖p) in nats
    teacher_feasible: Tensor  # (B,) bool: KL(q‖p) ≤ ε


def solve(log_p: Tensor, log_q: Tensor, epsilon: float) -> Solution:
    """Find β* and μ* of every row for the budget ε ≥ 0 in nats, from log p and log q (B, V).

    KL(μ_β‖p) grows with β, so β* is the root of KL = ε, or 1 if even the teacher lies in the ball.
    The root is found by Newton's method on √(2·KL), kept inside a bracket by bisection: close to
    the student KL ≈ ½β²·Var_p[r], so this root is nearly linear in β where KL itself is a parabola.
    The result always lies in the ball: KL(μ‖p) ≤ ε up to rounding. It has the precision of the
    input, and temporaries take four times the input's memory.
    """
    if epsilon == 0:
        zeros = torch.zeros(log_p.shape[:-1], dtype=log_p.dtype, device=log_p.device)
        return Solution(log_p, zeros, zeros, torch.zeros_like(zeros, dtype=torch.bool))
    path = _Path.between(log_p, log_q)
    best = _search(path, epsilon)
    _try_teacher(path, best, epsilon)
    log_mu = path.policy(best.beta, best.log_mass)
    # At the ends μ is p or q exactly, not up to rounding: a draft of p is then never rejected.
    stays = best.beta == 0
    if bool(stays.any()):
        log_mu[stays] = log_p[stays]
    feasible = (best.beta == 1) & ~path.outside
    if bool(feasible.any()):
        log_mu[feasible] = log_q[feasible]
    return Solution(log_mu, best.beta, best.kl, feasible)


@dataclass(frozen=True)
class _Moments:
    """At one β of each row, (B,): KL(μ_β‖p), Var_{μ_β}[r] and the log-normaliser A(β)."""

    kl: Tensor
    variance: Tensor
    log_mass: Tensor


@dataclass(frozen=True)
class _Path:
    """The family μ_β, β > 0, of each row, where both policies have mass.

    r is centred by its mean under p. Centring changes neither μ nor KL, but makes both terms of
    KL = βA'(β) − A(β) small, so that less is lost to cancellation.

    Where the teacher has no mass, μ_β has none for any β > 0. KL then starts from `jump` instead of
    0; if `jump` exceeds ε, only β = 0 is feasible.
    """

    log_p: Tensor  # (B, V), −inf where either policy has no mass
    ratio: Tensor  # (B, V), finite
    mean: Tensor  # (B,) E_p[r] before centring
    variance: Tensor  # (B,) and third central moment of r under p
    skew: Tensor
    jump: Tensor  # (B,) KL for β → 0⁺: −log of p's mass where q has some
    outside: Tensor  # (B,) bool: the teacher has mass where the student has none

    @staticmethod
    def between(log_p: Tensor, log_q: Tensor) -> _Path:
        # −inf − (−inf), where neither has mass, is NaN.
        ratio = (log_q - log_p).nan_to_num_(nan=0.0, posinf=float("inf"), neginf=NEG_INF)
        lost = ratio.amin(-1) == NEG_INF
        outside = ratio.amax(-1) == float("inf")
        if bool(lost.any()):
            log_p = log_p.masked_fill(ratio == NEG_INF, NEG_INF)
        if bool((lost | outside).any()):
            ratio.nan_to_num_(posinf=0.0, neginf=0.0)
        weight = log_p.exp()
        shared = weight.sum(-1)
        total = shared.clamp_min(torch.finfo(weight.dtype).tiny)
        mean = (weight * ratio).sum(-1) / total
        ratio.sub_(mean[:, None])
        variance = (weight.mul_(ratio) * ratio).sum(-1) / total
        skew = (weight.mul_(ratio) * ratio).sum(-1) / total
        jump = torch.where(lost, -shared.log(), 0.0).clamp_min(0.0)
        return _Path(log_p, ratio, mean, variance, skew, jump, outside)

    def moments(self, beta: Tensor, rows: Tensor | None = None) -> _Moments:
        """Moments at β in (0, 1] of some rows, all by default."""
        log_p = self.log_p if rows is None else self.log_p[rows]
        ratio = self.ratio if rows is None else self.ratio[rows]
        weight = torch.addcmul(log_p, ratio, beta[:, None])
        top = weight.amax(-1, keepdim=True)
        weight.sub_(top).exp_()
        # In float64: the error of a float32 sum over 150,000 ids is visible at a KL budget of 1e-3.
        total = weight.sum(-1, dtype=torch.float64)
        log_mass = (top[:, 0].double() + total.log()).to(beta.dtype)
        total = total.to(beta.dtype)
        tilted = weight.mul_(ratio)
        mean = tilted.sum(-1) / total
        variance = ((tilted * ratio).sum(-1) / total - mean.square()).clamp_min(0.0)
        return _Moments((beta * mean - log_mass).clamp_min(0.0), variance, log_mass)

    def policy(self, beta: Tensor, log_mass: Tensor) -> Tensor:
        """log μ_β of all rows (B, V), from β and A(β) of each."""
        return torch.addcmul(self.log_p, self.ratio, beta[:, None]).sub_(log_mass[:, None])


@dataclass(frozen=True)
class _Bracket:
    """Bounds on each row's root, (B,); the search changes these tensors in place.

    `beta` is the largest β known to be feasible, with its KL and A; it starts at the student's 0.
    `high` is the smallest β known to be infeasible, at first +inf.
    """

    beta: Tensor
    kl: Tensor
    log_mass: Tensor
    high: Tensor

    @staticmethod
    def at_student(path: _Path) -> _Bracket:
        zeros = torch.zeros_like(path.mean)
        return _Bracket(zeros, zeros.clone(), zeros.clone(), torch.full_like(zeros, float("inf")))

    def learn(self, rows: Tensor, beta: Tensor, point: _Moments, fits: Tensor) -> None:
        """Update `rows` with the moments at a β each; `fits` tells if it lies in the ball."""
        self.beta[rows] = torch.where(fits, beta, self.beta[rows])
        self.kl[rows] = torch.where(fits, point.kl, self.kl[rows])
        self.log_mass[rows] = torch.where(fits, point.log_mass, self.log_mass[rows])
        self.high[rows] = torch.where(fits, self.high[rows], beta)


def _search(path: _Path, epsilon: float) -> _Bracket:
    """Close in on the root of KL = ε in every row; each iteration visits only unfinished rows.

    A row is done at a feasible point with KL within `slack` of ε, at β = 1, or when its bracket has
    no room left. Steps aim at the middle of the slack window: aimed at ε itself, every second one
    would land just outside the ball.
    """
    slack = _SLACK[path.ratio.dtype]
    tiny = 4 * torch.finfo(path.ratio.dtype).eps
    bracket = _Bracket.at_student(path)
    target = (2 * (epsilon * (1 - slack / 2) - path.jump)).clamp_min(0.0).sqrt()
    rows = (path.jump <= epsilon).nonzero()[:, 0]
    beta = _inside(bracket, rows, _first_guess(path, target)[rows])
    for _ in range(_ITERATIONS):
        if not len(rows):
            break
        point = path.moments(beta, rows if len(rows) < len(target) else None)
        fits = point.kl <= epsilon
        bracket.learn(rows, beta, point, fits)
        close = fits & ((point.kl >= epsilon * (1 - slack)) | (beta == 1))
        narrow = bracket.high[rows] - bracket.beta[rows] <= tiny * bracket.high[rows].clamp_max(1.0)
        # Newton's step on f(β) = √(2·(KL − jump)), whose derivative is KL'/f = β·Var/f.
        root = (2 * (point.kl - path.jump[rows])).clamp_min(0.0).sqrt()
        guess = beta + (target[rows] - root) * root / (beta * point.variance)
        goes_on = ~(close | narrow)
        rows, guess = rows[goes_on], guess[goes_on]
        beta = _inside(bracket, rows, guess)
    return bracket


def _first_guess(path: _Path, target: Tensor) -> Tensor:
    """β at which an expansion of KL reaches the target: 2·(KL − jump) = target².

    To third order 2·(KL − jump) ≈ β²·Var_p[r] + ⅔β³·E_p[(r − E r)³]. The second order gives
    `first`; the third corrects it by a factor, which is kept within reason for long tails.
    """
    first = target / path.variance.sqrt()
    return first / (1 + first * path.skew / (3 * path.variance)).clamp(0.5, 4.0)


def _try_teacher(path: _Path, bracket: _Bracket, epsilon: float) -> None:
    """Take β = 1 where it is feasible and the search stopped short of it.

    Once μ has settled on a token, KL is flat, and a point within the slack of ε may lie far below
    β = 1. A trial costs a pass over the vocabulary; a bound spares most rows. A is convex, so its
    slope at 1 is at least the slope of the chord from β to 1, and
    KL(μ_1‖p) = A'(1) − A(1) ≥ (β·A(1) − A(β))/(1 − β), where A(1) = −E_p[r] if the student has mass
    wherever the teacher has.
    """
    beta = bracket.beta
    bound = (-beta * path.mean - bracket.log_mass) / (1 - beta)
    excluded = (
        (bracket.high <= 1)
        | (beta == 1)
        | (path.jump > epsilon)
        | (~path.outside & (bound > epsilon))
    )
    rows = (~excluded).nonzero()[:, 0]
    if len(rows):
        ones = torch.ones_like(beta[rows])
        point = path.moments(ones, rows)
        bracket.learn(rows, ones, point, point.kl <= epsilon)


def _inside(bracket: _Bracket, rows: Tensor, guess: Tensor) -> Tensor:
    """`guess` if it lies strictly inside the bracket, but at most 1; else the bracket's middle.

    The NaN of a step at zero variance is never inside.
    """
    low, high = bracket.beta[rows], bracket.high[rows]
    middle = (low + high.clamp_max(1.0)) / 2
    return torch.where((guess > low) & (guess < high), guess.clamp_max(1.0), middle)


# --- the one β of a batch whose mean KL(μ‖p) is a budget ---
#
# With the prefixes i held fixed, the minimum of mean KL(μ_i‖q_i) under mean KL(μ_i‖p_i) ≤ ε has one
# multiplier λ for all of them. Its stationary point is (1 + λ)·log μ_i = log q_i + λ·log p_i + c_i:
# μ_i ∝ p_i^(1−β) q_i^β with the same β = 1/(1 + λ) at every prefix.
#
# A batch is sampled with some β and measured; each measurement gives the next β.


TOLERANCE = 0.02  # of a batch's mean KL, relative to its budget
MOST_PASSES = 4  # most times that one batch is sampled
_LARGEST_CHANGE = 8.0  # factor of β from one pass to the next
_LEAST_BETA = 1e-6


class Pass(NamedTuple):
    """Means over the tokens of a batch that was sampled with one β, in nats.

    `slope` is dKL(μ_β‖p)/dβ = β·Var_{μ_β}[r] with the prefixes held fixed.
    """

    beta: float
    kl: float
    slope: float

    @staticmethod
    def of(row: Mapping[str, Any]) -> Pass:
        """The pass behind a row of `metrics.jsonl`."""
        return Pass(row["beta"], row["behavior_kl"], row["kl_slope"])

    def fits(self, epsilon: float) -> bool:
        """Whether its mean KL is ε within TOLERANCE, or less where μ is the teacher already."""
        return abs(self.kl - epsilon) <= TOLERANCE * epsilon or (self.beta == 1 > self.kl / epsilon)


def next_beta(passes: Sequence[Pass], epsilon: float) -> float:
    """The β with which to sample next, in (0, 1], for the mean KL ε > 0 after at least one pass.

    It is Newton's step on √(2·KL) from the last pass, as in `solve`, by a factor of at most
    _LARGEST_CHANGE. Where earlier passes bracket the root, it stays inside of their bracket.
    """
    beta, kl, slope = passes[-1]
    guess = math.inf  # KL says nothing of where the root is, as where p = q
    if kl > 0 and slope > 0:
        root = math.sqrt(2 * kl)
        guess = beta + (math.sqrt(2 * epsilon) - root) * root / slope
    guess = min(max(guess, beta / _LARGEST_CHANGE, _LEAST_BETA), beta * _LARGEST_CHANGE, 1.0)
    low = max((each.beta for each in passes if each.kl <= epsilon), default=0.0)
    # The mean KL need not grow with β: other tokens lead to other prefixes.
    above = [each.beta for each in passes if each.kl > epsilon and each.beta > low]
    high = min(above, default=math.inf)
    return guess if low < guess < high else (low + min(high, 1.0)) / 2


def closest(passes: Sequence[Pass], epsilon: float) -> Pass:
    """The pass whose mean KL is closest to ε; the first of equals."""
    return min(passes, key=lambda each: abs(each.kl - epsilon))


# --- the law of each behavior: the student's log p and the teacher's log q at a prefix → log μ ---


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
    solved = solve(log_p, log_q, behavior.epsilon)
    feasible = solved.teacher_feasible.to(log_p.dtype)
    return Law(
        solved.log_mu, {"beta": solved.beta, "teacher_feasible": feasible, "behavior_kl": solved.kl}
    )


@law.register
def batch_budget_law(behavior: BatchBudget, log_p: Tensor, log_q: Tensor | None) -> Law:
    """μ ∝ p^(1−β)·q^β with the batch's β; μ = p where all ids of one model are excluded by the other."""
    assert log_q is not None
    path = _Path.between(log_p, log_q)
    beta = torch.full_like(path.mean, behavior.beta)
    point = path.moments(beta)
    log_mu = path.policy(beta, point.log_mass)
    slope = beta * point.variance
    if behavior.beta == 1:  # q exactly, as in `solve`
        log_mu = torch.where(path.outside[:, None], log_mu, log_q)
    apart = path.jump.isinf()
    log_mu = torch.where(apart[:, None], log_p, log_mu)
    kl, slope = (torch.where(apart, 0.0, each) for each in (point.kl, slope))
    return Law(log_mu, {"beta": beta, "behavior_kl": kl, "kl_slope": slope})


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
