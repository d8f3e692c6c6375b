"""Whether a sampler has the weights of the checkpoint that it was told: what it makes of a fixed sequence of ids.

Weights are put into an engine that goes on running. Stale, torn or mixed-up ones would give plausible samples and wrong
scores, and no file would be damaged. So `learner` writes what it makes of the sequence into each checkpoint, and
`evaluator` compares when it loads one. Weights that a trial publishes for its own rollouts carry none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.config import Setup
from orchestrator.errors import WrongWeights

LENGTH = 32
# Mean difference of log-probabilities, in nats. Engines and batch shapes differ by rounding; in bfloat16 that is more
# than what two neighbouring checkpoints of a low learning rate differ by, so that there only grave mistakes are seen.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.05}


def canary_ids(setup: Setup) -> tuple[int, ...]:
    """The ids, the same for all models of a setup; none of them ends a response."""
    ends = {setup.student.eos, setup.teacher.eos}
    ordinary = [token for token in range(setup.vocabulary.valid) if token not in ends]
    return tuple(ordinary[(position * 7919 + 17) % len(ordinary)] for position in range(LENGTH))


def canary(ids: Sequence[int], log_probs: Sequence[float]) -> dict[str, Any]:
    """What a checkpoint holds: the ids, and the log-probability of each but the first after those before it."""
    return {"ids": list(ids), "log_probs": list(log_probs)}


def difference(expected: dict[str, Any], log_probs: Sequence[float]) -> float:
    """Mean distance in nats between a sampler's log-probabilities and those that the checkpoint's learner found."""
    pairs = list(zip(log_probs, expected["log_probs"], strict=True))
    return sum(abs(here - there) for here, there in pairs) / len(pairs)


def check_canary(expected: dict[str, Any], log_probs: Sequence[float], dtype: str) -> None:
    """Raise WrongWeights unless a sampler's log-probabilities are those that the checkpoint's learner found."""
    apart = difference(expected, log_probs)
    if not apart <= TOLERANCE[dtype]:  # so that NaN is refused, too
        raise WrongWeights(f"the sampler's weights are not the checkpoint's: {apart:.3g} nats apart on the canary")
