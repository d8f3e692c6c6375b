"""Finds the checkpoints of a family that the full protocol may still pick. Pure functions of
counts.

`samples_wanted` calls it, and decides which samples each survivor gets next.

The full protocol takes n samples of every problem at every checkpoint and picks the highest mean. A
race takes them in rungs, and after each rung drops the candidates that are confidently below the
leader. Only the samples not yet taken are uncertain: for a problem with success probability θ, the
mean of all n samples differs from that of the first m with variance θ(1 − θ)(1/m − 1/n). Candidates
meet on the same problems, so the choice of a benchmark's problems adds no variance. Treating two
candidates' samples as independent is conservative: candidates of one step and seed share their
uniforms.

At a rung, the probability that candidate j ends above leader L is p_j = Φ(−gap_j ÷ √(variance_j +
variance_L)), in the normal approximation and without a prior on the candidates. The candidates with
the smallest p leave, as long as the sum of their p is at most error / (R − 1), at each of the R − 1
rungs at which candidates can leave. By the union bound the pick of the full protocol then leaves
with probability at most `error`. A bound on each comparison alone, error / ((C − 1)(R − 1)) for C
candidates, would charge distant candidates as much as close ones, and takes a third more samples.
Computing p_j from the rung's own data favours the leader, which also leads by luck; simulations
therefore check the bound, among them worlds without any true difference
(`tests/selection/test_race.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PRIOR_SAMPLES = 2.0  # weight of the pooled rate of all candidates on a problem


@dataclass(frozen=True)
class Counts:
    """One benchmark: `correct` out of `n`, each (candidates, problems × seeds); `full` is the
    protocol's n.
    """

    correct: NDArray[np.int64]
    n: NDArray[np.int64]
    full: int


def survivors(benchmarks: Sequence[Counts], error: float, rungs: int) -> NDArray[np.bool_]:
    """(candidates,) True for candidates that may still be the pick of the full protocol.

    `rungs` is the number of all rungs of the race, `error` its probability of dropping that pick.
    """
    means = np.mean([_mean(counts) for counts in benchmarks], axis=0)
    variances = np.sum([_variance(counts) for counts in benchmarks], axis=0) / len(benchmarks) ** 2
    leader = means.argmax()
    ends_above = _ends_above(means[leader] - means, np.sqrt(variances + variances[leader]))
    ends_above[leader] = 1.0
    order = np.argsort(ends_above, kind="stable")
    alive = np.ones(len(means), dtype=np.bool_)
    alive[order[np.cumsum(ends_above[order]) <= error / max(rungs - 1, 1)]] = False
    return alive


def _ends_above(gaps: NDArray[np.float64], deviations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probability that a normal variable of these deviations exceeds the gap; 1 for a gap of 0
    without deviation.
    """
    found = np.where(gaps > 0, 0.0, 1.0)
    for index in np.flatnonzero(deviations > 0):
        found[index] = math.erfc(gaps[index] / deviations[index] / math.sqrt(2)) / 2
    return found


def _mean(counts: Counts) -> NDArray[np.float64]:
    return (counts.correct / counts.n).mean(axis=1)


def _variance(counts: Counts) -> NDArray[np.float64]:
    """(candidates,) variance of the mean of `full` samples around the mean of the samples taken so
    far.
    """
    return (_spread(counts) * (1 / counts.n - 1 / counts.full).clip(min=0)).mean(
        axis=1
    ) / counts.n.shape[1]


def _spread(counts: Counts) -> NDArray[np.float64]:
    """Smoothed θ(1 − θ): a few samples that are all right or all wrong do not make a problem
    certain.

    Each rate is shrunk towards that of all candidates on the same problem. The factor restores the
    spread that the noise of the shrunk rate hides, as n − 1 does in a sample variance.
    """
    pooled = (counts.correct.sum(axis=0) + 0.5) / (counts.n.sum(axis=0) + 1)
    weight = counts.n + PRIOR_SAMPLES
    rate = (counts.correct + PRIOR_SAMPLES * pooled) / weight
    return rate * (1 - rate) * weight / (weight - 1)
