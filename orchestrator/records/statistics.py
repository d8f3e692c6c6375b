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

    Ties count half, rollouts without a reward not at all. None unless there are correct and
    incorrect ones.
    """
    found, given = (
        np.asarray(values, dtype=float),
        np.asarray(rewards, dtype=float),
    )  # None becomes nan
    correct, wrong = found[given == 1.0], found[given == 0.0]
    if not len(correct) or not len(wrong):
        return None
    # A correct value is above those that sort left of it and ties with those that sort up to its
    # right end: both together count every pair twice. In whole numbers, so that the order of the
    # rollouts never shows in the result.
    ranked = np.sort(wrong)
    below = np.searchsorted(ranked, correct, side="left")
    up_to = np.searchsorted(ranked, correct, side="right")
    return int((below + up_to).sum()) / (2 * len(correct) * len(wrong))
