"""Bootstrap intervals and paired comparisons of pass@1, over problems and, where there are several, over seeds.

Shapes: S seeds, P problems of a benchmark, B replicates (`REPLICATES` unless told). Scores are c/n, fractions in
[0, 1].

A replicate redraws whole problems together with their samples. That already holds the noise of sampling n responses:
E[Var(c/n)] over problems is the spread of their pass rates plus the mean binomial variance, so drawing the samples once
more would count that noise twice (Davison and Hinkley, "Bootstrap Methods and their Application", §3.8). P − 1 problems
are drawn out of P, which makes the replicates' variance the unbiased s²/P (Rao and Wu 1988, "Resampling Inference With
Complex Survey Data"); seeds are drawn in the same way and crossed with the problems, which all seeds share (Owen 2007,
"The pigeonhole bootstrap": slightly too wide, never too narrow).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
REPLICATES = 4000

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """Confidence limits, in the unit of what was resampled."""

    low: float
    high: float


def resample(scores: Mapping[str, Array], key: str, replicates: int = REPLICATES) -> dict[str, Array]:
    """Replicates (B,) of the mean score of each entry (S, P), all on the same draws of problems and seeds.

    Entries are compared on one benchmark, so they must have the same problems in the same order; S may differ. The
    draws of problems depend on `key` alone and those of seeds on their number alone: benchmarks are drawn independently
    of each other, while a seed counts on all benchmarks at once.
    """
    sizes = {entry.shape[1] for entry in scores.values()}
    assert len(sizes) == 1, f"scores of {sizes} problems cannot be paired"
    drawn = _weights(sizes.pop(), key, replicates)
    return {
        name: _over_seeds(drawn @ entry.T) if _varies(entry) else _flat_replicates(entry, f"{key} {name}", replicates)
        for name, entry in scores.items()
    }


def average(columns: Sequence[Array]) -> Array:
    """Replicates (B,) of the unweighted mean over benchmarks."""
    return np.mean(columns, axis=0)


def interval(value: float, replicates: Array, confidence: float = CONFIDENCE) -> Interval:
    """Percentile interval with equal tails around the observed value, widened to it where it lies outside."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(replicates, [tail, 1 - tail])
    return Interval(min(float(low), value), max(float(high), value))


def p_value(differences: Array) -> float:
    """Two-sided bootstrap p-value of replicates (B,) of a difference.

    Twice the smaller of the shares of replicates at or below zero and at or above zero, both counts plus one, at most
    1. It falls below 1 − confidence where the percentile interval leaves zero out.
    """
    sides = min(np.count_nonzero(differences <= 0), np.count_nonzero(differences >= 0))
    return min(1.0, 2 * (sides + 1) / (len(differences) + 1))


def _weights(count: int, key: str, replicates: int) -> Array:
    """Shares (B, count) of each member among count − 1 draws; a lone member always has the whole."""
    if count == 1:
        return np.ones((replicates, 1))
    return _generator(key).multinomial(count - 1, np.full(count, 1 / count), size=replicates) / (count - 1)


def _over_seeds(means: Array) -> Array:
    """Replicates (B,) of the mean over seeds, from those of each seed (B, S)."""
    return (means * _weights(means.shape[1], "seeds", len(means))).sum(axis=1)


def _varies(scores: Array) -> bool:
    """Whether the problems' scores, averaged over seeds, differ at all."""
    return bool(np.ptp(scores.mean(axis=0)) > 1e-12)


def _flat_replicates(scores: Array, key: str, replicates: int) -> Array:
    """Replicates where all problems score the same, as when all are right, and resampling them shows no spread.

    Draws of the mid-P confidence distribution of a share known from P independent trials (Clopper and Pearson 1934):
    no spread of scores in [0, 1] over problems is wider. All right gives the one-sided 95 % bound 0.05^(1/P), the
    "rule of three". The spread over seeds comes on top.
    """
    problems, mean = scores.shape[1], float(scores.mean())
    right = round(mean * problems, 9)
    generator = _generator(key)
    low = generator.beta(right, problems - right + 1, replicates) if right > 0 else np.zeros(replicates)
    high = generator.beta(right + 1, problems - right, replicates) if right < problems else np.ones(replicates)
    drawn = np.where(generator.random(replicates) < 0.5, low, high)
    seeds = _over_seeds(np.tile(scores.mean(axis=1), (replicates, 1))) - mean
    return np.clip(drawn + seeds, 0, 1)


def _generator(key: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]))
