"""Split-half selection: the score of a checkpoint on problems that took no part in selecting it.

The best of many noisy checkpoints looks better than it is, the more so the more there are. Choosing
on one half of the problems and scoring on the other half removes that, at the price of choosing
from half as much.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

SPLITS = 500

Array = NDArray[np.float64]


def split_half_scores(scores: Mapping[str, Array], splits: int = SPLITS) -> dict[str, float] | None:
    """Benchmark → mean score (in [0, 1]) of the candidate chosen on the other half of the problems.

    `scores` holds (C, P) for each benchmark: C candidates in the order in which ties are settled,
    the same for all benchmarks, and P problems. Each of `splits` random splits halves the problems
    of every benchmark; the candidate with the highest unweighted mean over benchmarks on one half
    is scored on the other, both ways. Deterministic. None where some benchmark has a single
    problem, which cannot be split. With one candidate nothing is chosen, and the result is its
    score.
    """
    counts = {len(matrix) for matrix in scores.values()}
    assert len(counts) == 1, f"benchmarks with different candidates: {counts}"
    if counts == {1}:
        return {name: float(matrix.mean()) for name, matrix in scores.items()}
    if any(matrix.shape[1] < 2 for matrix in scores.values()):
        return None
    halves: dict[str, Array] = {}  # each (2, C, splits)
    for name, matrix in scores.items():
        halves[name] = _halves(matrix, name, splits)
    means = np.mean(list(halves.values()), axis=0)
    # Sums of the same numbers in another order differ in their last bits; a tie must stay one.
    chosen = np.argmax(np.round(means, 12), axis=1)  # (2, splits)
    found = {}
    for name, half in halves.items():
        # The choice of one half is scored on the other.
        found[name] = float(np.take_along_axis(half[::-1], chosen[:, None], 1).mean())
    return found


def _halves(scores: Array, key: str, splits: int) -> Array:
    """Mean scores (2, C, splits) on a random half of the problems and on the rest."""
    problems = scores.shape[1]
    generator = np.random.default_rng(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]))
    order = np.argsort(generator.random((splits, problems)), axis=1)
    first = (order < problems // 2).T.astype(np.float64)  # (P, splits)
    size = problems // 2
    return np.stack([scores @ first / size, scores @ (1 - first) / (problems - size)])
