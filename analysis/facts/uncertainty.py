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

from orchestrator.selection.significance import CONFIDENCE

REPLICATES = 4000
FLAT = 1e-12  # up to which scores that differ are the same but for rounding

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """Confidence limits, in the unit of what was resampled."""

    low: float
    high: float


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
