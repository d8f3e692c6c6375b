"""The losses of a step: divergences of student and teacher on the support, and policy gradients.

The student's support S holds the k ids that are compared. With M = Σ_S p and Q = Σ_S q, an
objective's name says which outcomes its divergences compare:

| name | outcomes |
|---|---|
| renormalized | the ids of S under p̄ = p/M and q̄ = q/Q |
| tail | the ids of S, and "not in S" with 1 − M and 1 − Q |
| truncated | the ids of S, without a remainder: no divergence, and lower for a smaller M |
| full | all ids; S is the vocabulary |
| surrogate | as `renormalized`, by the released code's estimator; of the reverse KL alone |

The gradient of a reverse KL is ∇KL(p̄‖q̄) + c·∇log M (Li et al. 2604.13016):

| name | c |
|---|---|
| renormalized | 0 |
| surrogate | KL(p̄‖q̄) + log(M/Q) |
| tail | KL(p̄‖q̄) + log(M/Q) − log((1−M)/(1−Q)), all times M, and M·∇KL |
| truncated | KL(p̄‖q̄) + log(M/Q) + 1, all times M, and M·∇KL |

Shapes: N response tokens, k support ids, K outcomes. All values in nats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from orchestrator.policy.spec import (
    Bridge,
    Divergence,
    Everywhere,
    FallingWithDiscrepancy,
    ForwardKL,
    JensenShannon,
    Proximal,
    ReverseKL,
    SampledToken,
    Target,
    TeacherKeeps,
    TeacherPrefers,
    TeacherUncertain,
)
from orchestrator.policy.vocabulary import NEG_INF

REVERSE_KL = ReverseKL()


def token_loss(
    name: str, log_p: Tensor, log_q: Tensor, divergence: Divergence = REVERSE_KL
) -> Tensor:
    """Divergence at each token: log p and (detached) log q on the support, (N, k) → (N,).

    `renormalized` allows a constant for each token in log p. Raises ValueError on an unknown name,
    and for `surrogate` with another divergence than the reverse KL.
    """
    log_q = log_q.detach()
    if name == "surrogate":
        if not isinstance(divergence, ReverseKL):
            raise ValueError(f"objective: 'surrogate' estimates no {type(divergence).__name__}")
        return _surrogate(log_p, log_q)
    log_p, log_q = _outcomes(name, log_p, log_q)
    match divergence:
        case ReverseKL():
            return _kl(log_p, log_q)
        case ForwardKL():
            return _kl(log_q, log_p)
        case JensenShannon(beta):
            mean = _mixed(log_q, log_p, beta)
            return beta * _kl(log_q, mean) + (1 - beta) * _kl(log_p, mean)


def sampled_loss(loss: SampledToken, log_p: Tensor, log_q: Tensor) -> Tensor:
    """Policy gradient at the sampled tokens: log p with its gradient and log q there, (N,) → (N,).

    The value is −A, and the gradient −A·∇log p, since p/sg(p) is 1 with the gradient of log p.
    """
    advantage = log_q - log_p
    if loss.clip is not None:
        advantage = advantage.clamp(-loss.clip, loss.clip)
    return -advantage.detach() * (log_p - log_p.detach()).exp()


def target_of(target: Target, name: str, log_p: Tensor, log_q: Tensor) -> Tensor:
    """log q̃ on the support, without gradient: (N, k) → (N, k)."""
    match target:
        case Bridge(beta) if beta:
            return veto_target(log_p, log_q, beta)
        case Proximal(alpha) if alpha < 1:
            return proximal_target(name, log_p, log_q, alpha)
    return log_q.detach()


def veto_target(log_p: Tensor, log_q: Tensor, beta: float) -> Tensor:
    """log q̃ ∝ log q + β·sg(log p), normalised on the support: (N, k) → (N, k).

    The fixed point is p ∝ q^{1/(1−β)}. Entries without student mass keep none.
    """
    bridge = torch.where(log_p == NEG_INF, NEG_INF, log_q + beta * log_p).detach()
    return _normalised(bridge)


def proximal_target(name: str, log_p: Tensor, log_q: Tensor, alpha: float) -> Tensor:
    """log(α·q + (1 − α)·sg(p)) on the support: (N, k) → (N, k).

    Under `renormalized` it mixes p̄ and q̄, since log p is then known up to a constant alone.
    """
    if name == "renormalized":
        log_p, log_q = _normalised(log_p), _normalised(log_q)
    return _mixed(log_q, log_p, alpha).detach()


def support_mass(log_prob: Tensor) -> Tensor:
    """Σ_S of the probabilities on the support: (N, k) → (N,)."""
    return log_prob.exp().sum(-1)


def _outcomes(name: str, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """log p and log q of the outcomes that the objective compares, (N, k) → (N, K)."""
    match name:
        case "renormalized":
            return _normalised(log_p), _normalised(log_q)
        case "tail":
            return _with_rest(log_p), _with_rest(log_q)
        case "truncated" | "full":
            return log_p, log_q
    raise ValueError(f"objective: {name!r} is unknown")


def _normalised(log_prob: Tensor) -> Tensor:
    return log_prob - log_prob.logsumexp(-1, keepdim=True)


def _with_rest(log_prob: Tensor) -> Tensor:
    """The ids of S with "not in S" behind them, (N, k) → (N, k+1).

    A remainder below the dtype's precision counts as that precision, and gets no gradient: its
    logarithm would be infinite or noise.
    """
    rest = 1 - support_mass(log_prob)[:, None]
    tiny = torch.finfo(log_prob.dtype).eps
    return torch.cat([log_prob, torch.where(rest > tiny, rest, tiny).log()], dim=-1)


def _mixed(log_a: Tensor, log_b: Tensor, share: float) -> Tensor:
    """log(share·a + (1 − share)·b); entries without mass in either get no gradient, not a NaN."""
    inside = (log_a > NEG_INF) | (log_b > NEG_INF)
    safe_a = torch.where(inside, log_a, 0.0)
    safe_b = torch.where(inside, log_b, 0.0)
    mixed = torch.logaddexp(safe_a + math.log(share), safe_b + math.log1p(-share))
    return torch.where(inside, mixed, NEG_INF)


def _kl(log_a: Tensor, log_b: Tensor) -> Tensor:
    """Σ a(log a − log b); entries with a = 0 contribute nothing and get no gradient.

    The inner `where` keeps −inf out of the product, since 0·inf is NaN. An outer `where` alone
    would multiply the gradient's NaN by zero, which leaves NaN.
    """
    inside = log_a > NEG_INF
    safe_a = torch.where(inside, log_a, 0.0)
    safe_b = torch.where(inside, log_b, 0.0)
    return torch.where(inside, safe_a.exp() * (safe_a - safe_b), 0.0).sum(-1)


def _surrogate(log_p: Tensor, log_q: Tensor) -> Tensor:
    """−Σ_S sg(A)·p/sg(p) with A = −p̄(log p − log q): the released code's estimator.

    sg stops the gradient; p/sg(p) is 1 with the gradient of log p. The value is therefore
    Σ_S p̄·(log p − log q). The gradient Σ_S p̄·(log p − log q)·∇log p is a policy gradient over all
    ids of the support.
    """
    inside = log_p > NEG_INF
    safe = torch.where(inside, log_p, 0.0)
    weight = torch.where(inside, _normalised(log_p).exp() * (safe - log_q), 0.0).detach()
    return (weight * (safe - safe.detach()).exp()).sum(-1)


# --- weights of response tokens in a term of an objective, from records of sampling and scoring ---
#
# Shapes: N response tokens of any number of responses; B responses of T positions.


@dataclass(frozen=True)
class Recorded:
    """Numbers at the sampled tokens, each (N,); those of the teacher are NaN without scores."""

    log_p: Tensor  # under the student that sampled, nats
    log_q: Tensor  # under the teacher, nats
    entropy: Tensor  # H(q), nats
    before: Tensor  # share in [0, 1] of the response's discrepancy that lies before the token


def discrepancy_before(log_p: Tensor, log_q: Tensor, mask: Tensor) -> Tensor:
    """Share of Σ|log q − log p| of each response that lies before each position: (B, T) → (B, T).

    `mask` is True at response positions. A response without any discrepancy has the share 0.
    """
    gaps = torch.where(mask, (log_q - log_p).abs(), 0.0)
    total = gaps.sum(-1, keepdim=True)
    return (gaps.cumsum(-1) - gaps) / torch.where(total > 0, total, 1.0)


@singledispatch
def weigh(where: object, recorded: Recorded) -> Tensor:
    """Weight of each token, (N,). A new rule registers its function with `@weigh.register`."""
    raise TypeError(f"no weights are registered for {type(where).__name__}")


@weigh.register
def _everywhere(where: Everywhere, recorded: Recorded) -> Tensor:
    return torch.ones_like(recorded.log_p)


@weigh.register
def _teacher_uncertain(where: TeacherUncertain, recorded: Recorded) -> Tensor:
    above = recorded.entropy > where.nats
    return (above ^ where.inverted).to(recorded.log_p.dtype)


@weigh.register
def _teacher_keeps(where: TeacherKeeps, recorded: Recorded) -> Tensor:
    kept = (recorded.log_q - recorded.log_p).exp().clamp_max(1.0)
    return 1 - kept if where.inverted else kept


@weigh.register
def _teacher_prefers(where: TeacherPrefers, recorded: Recorded) -> Tensor:
    preferred = recorded.log_q > recorded.log_p
    return (preferred ^ where.inverted).to(recorded.log_p.dtype)


@weigh.register
def _falling(where: FallingWithDiscrepancy, recorded: Recorded) -> Tensor:
    return 1 + (where.most - 1) * (1 - recorded.before)
