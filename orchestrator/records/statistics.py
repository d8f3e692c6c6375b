"""Statistics that training logs of a step, and analysis takes again over the rows of several steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def auroc(
    values: Floats | Sequence[float], rewards: Floats | Sequence[float | None]
) -> float | None:
    """Probability that a correct rollout (reward 1) has a higher value than an incorrect one (0).

    Ties count half, rollouts without a reward not at all. None unless some rollouts are correct and
    some incorrect.
    """
    values = np.asarray(values, dtype=float)
    rewards = np.asarray(rewards, dtype=float)  # None becomes nan
    correct = values[rewards == 1.0]
    wrong = values[rewards == 0.0]
    if not len(correct) or not len(wrong):
        return None
    # `below` counts the incorrect values below a correct one, and `up_to` also those equal to it.
    # Their sum thus counts a lower value twice and a tie once, and is halved at the end. The counts
    # are whole numbers, so the order of the rollouts never changes the result.
    ranked = np.sort(wrong)
    below = np.searchsorted(ranked, correct, side="left")
    up_to = np.searchsorted(ranked, correct, side="right")
    return int((below + up_to).sum()) / (2 * len(correct) * len(wrong))
