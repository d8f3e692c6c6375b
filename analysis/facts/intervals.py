"""Bootstrap intervals of pass@1 over the problems of given checkpoints.

They say nothing of other training runs, which `orchestrator.selection.significance` does.

Shapes: P problems of a benchmark, B replicates (`REPLICATES` unless told). Scores are c/n,
fractions in [0, 1], or their means over seeds.

A replicate redraws whole problems together with their samples. That already holds the noise of
sampling n responses: E[Var(c/n)] over problems is the spread of their pass rates plus the mean
binomial variance, so drawing the samples once more would count that noise twice (Davison and
Hinkley, "Bootstrap Methods and their Application", §3.8). P − 1 problems are drawn out of P, which
makes the replicates' variance the unbiased s²/P (Rao and Wu 1988, "Resampling Inference With
Complex Survey Data").
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.numbers import limits_text
from orchestrator.selection.significance import CONFIDENCE

REPLICATES = 4000
SPLITS = 500  # of the problems into halves
FLAT = 1e-12  # up to which scores that differ are the same but for rounding

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """Confidence limits, in the unit of what was resampled."""

    low: float
    high: float

    @property
    def text(self) -> str:
        """`[+1.2, +7.0]`, of a difference in points."""
        return limits_text(self.low, self.high)


class Draws:
    """Draws of a benchmark's problems, the same for all that is compared on it.

    They depend on `key` alone: benchmarks are drawn independently of each other.
    """

    def __init__(self, key: str, problems: int, replicates: int = REPLICATES):
        self._key, self._replicates = key, replicates
        self._weights = _weights(problems, key, replicates)

    def mean(self, scores: Array, name: str) -> Array:
        """Replicates (B,) of the mean of scores (P,) in [0, 1]; `name` tells flat ones apart."""
        if np.ptp(scores) > FLAT:
            return self._weights @ scores
        return _flat_replicates(scores, f"{self._key} {name}", self._replicates)

    def ratio(self, sums: Array, counts: Array) -> Array:
        """Replicates (B,) of Σ sums ÷ Σ counts over problems, a mean over seeds.

        Both have (seeds, P) entries. NaN where a resample has no counts.
        """
        with np.errstate(invalid="ignore"):  # 0 ÷ 0
            return ((self._weights @ sums.T) / (self._weights @ counts.T)).mean(axis=1)


def resample(
    scores: Mapping[str, Array], key: str, replicates: int = REPLICATES
) -> dict[str, Array]:
    """Replicates (B,) of the mean score of each entry (P,), all on the same draws of problems.

    Entries are compared on one benchmark, so they must have the same problems in the same order.
    """
    sizes = {len(entry) for entry in scores.values()}
    assert len(sizes) == 1, f"scores of {sizes} problems cannot be paired"
    draws = Draws(key, sizes.pop(), replicates)
    return {name: draws.mean(entry, name) for name, entry in scores.items()}


def average(columns: Sequence[Array]) -> Array:
    """Replicates (B,) of the unweighted mean over benchmarks."""
    return np.mean(columns, axis=0)


def interval(value: float, replicates: Array, confidence: float = CONFIDENCE) -> Interval:
    """Percentile interval with equal tails, widened to the observed value if that lies outside."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(replicates, [tail, 1 - tail])
    return Interval(min(float(low), value), max(float(high), value))


def _weights(count: int, key: str, replicates: int) -> Array:
    """Shares (B, count) of each member among count − 1 draws; a lone member always has the whole."""
    if count == 1:
        return np.ones((replicates, 1))
    return generator(key).multinomial(count - 1, np.full(count, 1 / count), size=replicates) / (
        count - 1
    )


def _flat_replicates(scores: Array, key: str, replicates: int) -> Array:
    """Replicates where all problems score the same, so that resampling them shows no spread.

    Draws of the mid-P confidence distribution of a share known from P independent trials (Clopper
    and Pearson 1934): no spread of scores in [0, 1] over problems is wider. All right gives the
    one-sided 95 % bound 0.05^(1/P), the "rule of three".
    """
    problems = len(scores)
    right = round(float(scores.sum()), 9)
    numbers = generator(key)
    low, high = np.zeros(replicates), np.ones(replicates)
    if right > 0:
        low = numbers.beta(right, problems - right + 1, replicates)
    if right < problems:
        high = numbers.beta(right + 1, problems - right, replicates)
    return np.where(numbers.random(replicates) < 0.5, low, high)


def generator(key: str) -> np.random.Generator:
    """The random numbers that a key stands for."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]))


# --- split-half selection: a checkpoint's score on problems that took no part in selecting it ---

# The best of many noisy checkpoints looks better than it is, the more so the more there are.
# Choosing on one half of the problems and scoring on the other half removes that, at the price of
# choosing from half as much.


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
    order = np.argsort(generator(key).random((splits, problems)), axis=1)
    first = (order < problems // 2).T.astype(np.float64)  # (P, splits)
    size = problems // 2
    return np.stack([scores @ first / size, scores @ (1 - first) / (problems - size)])
