"""The reverse-KL family on the student's top-k support, and Veto's target (Li et al. 2604.13016;
2601.07155).

The student's support S holds the k ids that are compared. A loss on S shapes p on S, and moves the
mass M = Σ_S p. With Q = Σ_S q and p̄, q̄ renormalised on S, every member's gradient is
∇KL(p̄‖q̄) + c·∇log M; members differ in their effect on M:

| name | c |
|---|---|
| renormalized | 0 |
| surrogate | KL(p̄‖q̄) + log(M/Q) |
| tail | KL(p̄‖q̄) + log(M/Q) − log((1−M)/(1−Q)), all times M, and M·∇KL |
| truncated | KL(p̄‖q̄) + log(M/Q) + 1, all times M, and M·∇KL |

Shapes: N response tokens, k support ids, V vocabulary rows. All values in nats.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orchestrator.policy.vocabulary import NEG_INF


def token_loss(name: str, log_p: Tensor, log_q: Tensor) -> Tensor:
    """Loss of each token: log p and (detached) log q on the support, (N, k) → (N,).

    For `full`, the support is the whole vocabulary. Raises ValueError on an unknown name.
    """
    log_q = log_q.detach()
    match name:
        case "renormalized":
            return _kl(_normalised(log_p), _normalised(log_q))
        case "surrogate":
            return _surrogate(log_p, log_q)
        case "tail":
            return _kl(log_p, log_q) + _tail(log_p, log_q)
        case "truncated" | "full":
            return _kl(log_p, log_q)
    raise ValueError(f"objective: {name!r} is unknown")


def veto_target(log_p: Tensor, log_q: Tensor, beta: float) -> Tensor:
    """log q̃ ∝ log q + β·sg(log p), normalised on the support: (N, k) → (N, k). Fixed point p ∝
    q^{1/(1−β)}.

    Entries without student mass keep none.
    """
    bridge = torch.where(log_p == NEG_INF, NEG_INF, log_q + beta * log_p).detach()
    return _normalised(bridge)


def support_mass(log_prob: Tensor) -> Tensor:
    """Σ_S of the probabilities on the support: (N, k) → (N,)."""
    return log_prob.exp().sum(-1)


def _normalised(log_prob: Tensor) -> Tensor:
    return log_prob - log_prob.logsumexp(-1, keepdim=True)


def _kl(log_a: Tensor, log_b: Tensor) -> Tensor:
    """Σ a(log a − log b); entries with a = 0 contribute nothing and get no gradient.

    The inner `where` keeps −inf out of the product, since 0·inf is NaN. An outer `where` alone
    would multiply the gradient's NaN by zero, which leaves NaN.
    """
    inside = log_a > NEG_INF
    safe_a = torch.where(inside, log_a, 0.0)
    return torch.where(inside, safe_a.exp() * (safe_a - log_b), 0.0).sum(-1)


def _surrogate(log_p: Tensor, log_q: Tensor) -> Tensor:
    """−Σ_S sg(A)·p/sg(p) with A = −p̄(log p − log q): the released code's estimator; sg stops the
    gradient.

    p/sg(p) is 1 with the gradient of log p. The value is therefore Σ_S p̄·(log p − log q). The
    gradient Σ_S p̄·(log p − log q)·∇log p is a policy gradient over all ids of the support.
    """
    inside = log_p > NEG_INF
    safe = torch.where(inside, log_p, 0.0)
    weight = torch.where(inside, _normalised(log_p).exp() * (safe - log_q), 0.0).detach()
    return (weight * (safe - safe.detach()).exp()).sum(-1)


def _tail(log_p: Tensor, log_q: Tensor) -> Tensor:
    """The outcome "not in S": (1−M) log((1−M)/(1−Q)), 0 where S holds all of the student's mass."""
    rest_p = 1 - support_mass(log_p)
    rest_q = 1 - support_mass(log_q)
    tiny = torch.finfo(log_p.dtype).eps
    has_tail = rest_p > tiny
    safe_p = torch.where(has_tail, rest_p, 1.0)
    return torch.where(has_tail, safe_p * (safe_p.log() - rest_q.clamp_min(tiny).log()), 0.0)
