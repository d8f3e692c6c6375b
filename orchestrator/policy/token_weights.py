"""Weights of response tokens in a term of an objective, from what sampling and scoring recorded.

Shapes: N response tokens of any number of responses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from orchestrator.policy.spec import Everywhere, TeacherAgrees, TeacherUncertain


@dataclass(frozen=True)
class Recorded:
    """Numbers at the sampled tokens, each (N,), in nats."""

    log_p: Tensor  # under the student that sampled
    log_q: Tensor  # under the teacher
    entropy: Tensor  # H(q)


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
def _teacher_agrees(where: TeacherAgrees, recorded: Recorded) -> Tensor:
    agreed = (recorded.log_q - recorded.log_p).exp().clamp_max(1.0) >= where.ratio
    return (agreed ^ where.inverted).to(recorded.log_p.dtype)
