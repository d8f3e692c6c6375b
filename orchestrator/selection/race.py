"""Which checkpoints of a family may still be the one that the full protocol would pick. Pure functions of counts.

`samples_wanted` asks, and says what each survivor is to get next.

The full protocol takes n samples of every problem at every checkpoint and picks the highest mean. A race takes them
in rungs, and after each rung drops the candidates that are confidently below the leader. Uncertain is only what
has not been sampled: of a problem with success probability θ, the mean of all n samples differs from that of the
first m with variance θ(1 − θ)(1/m − 1/n). Candidates meet on the same problems, so which problems a benchmark
happens to hold does not enter. Taking two candidates' samples as independent is on the safe side: candidates of one
step and seed share their uniforms.

A family of C candidates with R rungs makes at most C − 1 comparisons of the checkpoint that the full protocol would
pick with a leader, at R − 1 rungs; each errs with probability error / ((C − 1)(R − 1)) in the normal approximation, so
that it is dropped with probability at most `error` (union bound).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

PRIOR_SAMPLES = 2.0  # weight of what all candidates together say of a problem


@dataclass(frozen=True)
class Counts:
    """One benchmark: `correct` out of `n`, each (candidates, problems × seeds); `full` is the protocol's n."""

    correct: NDArray[np.int64]
    n: NDArray[np.int64]
    full: int


def survivors(benchmarks: Sequence[Counts], error: float, candidates: int, rungs: int) -> NDArray[np.bool_]:
    """(candidates,) True for those that may still be the pick of the full protocol.

    `candidates` and `rungs` are those of the whole race, `error` its probability of dropping that pick.
    """
    means = np.mean([_mean(counts) for counts in benchmarks], axis=0)
    variances = np.sum([_variance(counts) for counts in benchmarks], axis=0) / len(benchmarks) ** 2
    leader = means.argmax()
    behind = means[leader] - means
    return behind <= _quantile(error, candidates, rungs) * np.sqrt(variances + variances[leader])


def _quantile(error: float, candidates: int, rungs: int) -> float:
    comparisons = max(candidates - 1, 1) * max(rungs - 1, 1)
    return NormalDist().inv_cdf(1 - error / comparisons)


def _mean(counts: Counts) -> NDArray[np.float64]:
    return (counts.correct / counts.n).mean(axis=1)


def _variance(counts: Counts) -> NDArray[np.float64]:
    """(candidates,) variance of the mean of `full` samples around the mean of those that are there."""
    return (_spread(counts) * (1 / counts.n - 1 / counts.full).clip(min=0)).mean(axis=1) / counts.n.shape[1]


def _spread(counts: Counts) -> NDArray[np.float64]:
    """Smoothed θ(1 − θ): few samples that are all right or all wrong do not make a problem certain.

    Each rate is shrunk towards that of all candidates on the same problem; the factor takes back what the noise of
    the shrunk rate hides, as n − 1 does in a sample variance.
    """
    pooled = (counts.correct.sum(axis=0) + 0.5) / (counts.n.sum(axis=0) + 1)
    weight = counts.n + PRIOR_SAMPLES
    rate = (counts.correct + PRIOR_SAMPLES * pooled) / weight
    return rate * (1 - rate) * weight / (weight - 1)
