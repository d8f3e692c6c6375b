"""Checks that a sampler has a checkpoint's weights, by its log-probabilities of a fixed sequence.

Weights are swapped in a running engine. Stale, torn or mixed-up weights would give plausible
samples and wrong scores, without a damaged file. The learner (`learner`) therefore writes its
log-probabilities into each checkpoint, and an evaluator (`graded_sampling`) compares them when it
loads one. Weights that a trial publishes for its own rollouts carry none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.config import Setup
from orchestrator.errors import WrongWeights

LENGTH = 32
# Mean difference of log-probabilities, in nats. Engines and batch shapes differ by rounding. In
# bfloat16, rounding exceeds the difference of neighbouring checkpoints at a low learning rate, and
# the check finds grave mistakes only.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.05}


def canary_ids(setup: Setup) -> tuple[int, ...]:
    """The canary's ids, the same for all models of a setup; none ends a response."""
    ends = {*setup.student.stop_ids, *setup.teacher.stop_ids}
    ordinary = [token for token in range(setup.vocabulary.valid) if token not in ends]
    return tuple(ordinary[(position * 7919 + 17) % len(ordinary)] for position in range(LENGTH))


def canary(ids: Sequence[int], log_probs: Sequence[float]) -> dict[str, Any]:
    """A checkpoint's canary: the ids, and log p of each id but the first given its predecessors."""
    return {"ids": list(ids), "log_probs": list(log_probs)}


def difference(expected: dict[str, Any], log_probs: Sequence[float]) -> float:
    """Mean distance in nats between a sampler's log-probabilities and the checkpoint's."""
    total = 0.0
    for here, there in zip(log_probs, expected["log_probs"], strict=True):
        total += abs(here - there)
    return total / len(log_probs)


def check_canary(expected: dict[str, Any], log_probs: Sequence[float], dtype: str) -> None:
    """Raise WrongWeights unless a sampler's log-probabilities match the checkpoint's."""
    apart = difference(expected, log_probs)
    if not apart <= TOLERANCE[dtype]:  # refuses NaN, too
        raise WrongWeights(
            f"the sampler's weights are not the checkpoint's: {apart:.3g} nats apart on the canary"
        )
