"""Weights of response tokens in a term of an objective, from records of sampling and scoring.

Shapes: N response tokens of any number of responses; B responses of T positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from orchestrator.policy.spec import (
    Everywhere,
    FallingWithDiscrepancy,
    First,
    LowestShare,
    TeacherKeeps,
    TeacherPrefers,
    TeacherUncertain,
)


@dataclass(frozen=True)
class Recorded:
    """Numbers at the sampled tokens, each (N,); those of the teacher are NaN without scores."""

    log_p: Tensor  # under the student that sampled, nats
    log_q: Tensor  # under the teacher, nats
    entropy: Tensor  # H(q), nats
    position: Tensor  # of the token in its response, from 0
    before: Tensor  # share in [0, 1] of the response's discrepancy that lies before the token
    less_likely: Tensor  # share in [0, 1) of the response's tokens that are less likely under p


def discrepancy_before(log_p: Tensor, log_q: Tensor, mask: Tensor) -> Tensor:
    """Share of Σ|log q − log p| of each response that lies before each position: (B, T) → (B, T).

    `mask` is True at response positions. A response without any discrepancy has the share 0.
    """
    gaps = torch.where(mask, (log_q - log_p).abs(), 0.0)
    total = gaps.sum(-1, keepdim=True)
    return (gaps.cumsum(-1) - gaps) / torch.where(total > 0, total, 1.0)


def share_less_likely(log_p: Tensor, mask: Tensor) -> Tensor:
    """Share of each response's tokens that are less likely than the token: (B, T) → (B, T).

    `mask` is True at response positions. Of equally likely tokens the earlier one counts as less
    likely. The shares are float64: rank ÷ length is then below a share such as 0.2 exactly where
    the rank is below 0.2·length, which the product in floating point may miss.
    """
    order = torch.where(mask, log_p, torch.inf).argsort(dim=-1, stable=True)
    rank = torch.empty_like(order)
    rank.scatter_(-1, order, torch.arange(order.shape[-1]).expand_as(order))
    return rank.double() / mask.sum(-1, keepdim=True)


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
    kept = 1 - kept if where.inverted else kept
    return torch.where(recorded.position < where.after, 0.0, kept) if where.after else kept


@weigh.register
def _first(where: First, recorded: Recorded) -> Tensor:
    return (recorded.position < where.tokens).to(recorded.log_p.dtype)


@weigh.register
def _teacher_prefers(where: TeacherPrefers, recorded: Recorded) -> Tensor:
    preferred = recorded.log_q > recorded.log_p
    return (preferred ^ where.inverted).to(recorded.log_p.dtype)


@weigh.register
def _lowest_share(where: LowestShare, recorded: Recorded) -> Tensor:
    return (recorded.less_likely < where.share).to(recorded.log_p.dtype)


@weigh.register
def _falling(where: FallingWithDiscrepancy, recorded: Recorded) -> Tensor:
    return 1 + (where.most - 1) * (1 - recorded.before)
