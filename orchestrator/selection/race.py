"""Decides which checkpoints of a family leave a race, from counts of right answers.

The full protocol takes n samples of every problem at every checkpoint and picks the highest mean. A
race takes them in rungs, and drops candidates after each; `samples_wanted` replays it and says
which samples the survivors get next.

**Means.** Only samples that were not taken yet are uncertain. For a problem with success
probability θ, the mean of all n samples differs from the mean of the first m with variance
θ(1 − θ)(1/m − 1/n). Candidates meet on the same problems, so the choice of a benchmark's problems
adds no variance. Treating the samples of two candidates as independent is conservative: candidates
of one step and seed share their uniforms.

**Without an indifference zone** a candidate leaves once it will hardly be the pick of the full
protocol. At a rung, the probability that candidate j ends above leader L is
p_j = Φ(−gap_j ÷ √(variance_j + variance_L)), in the normal approximation. The candidates with the
smallest p leave, as long as the sum of their p is at most error / (R − 1), at each of the R − 1
rungs at which candidates can leave. By the union bound the pick of the full protocol then leaves
with probability at most `error`. A bound on each comparison alone, error / ((C − 1)(R − 1)) for C
candidates, would charge distant candidates as much as close ones, and takes a third more samples.

**With a zone δ > 0** a race ends once it can gain no more than δ. The full means X_j of a
family are taken for samples of one normal distribution N(μ, T), and the present mean x_j of a
candidate for X_j plus noise of the variance v_j above. Given x_j, X_j is then normal with mean
μ + b_j(x_j − μ) and variance b_j·v_j, where b_j = T/(T + v_j). This shrinkage takes from the leader
its lead by luck, which would be largest where candidates do not differ at all. μ and T are
estimated from all candidates of the family, those that left included: T is the mean of its
posterior distribution under a flat prior on √T.

For the first k candidates by their means, let K be their set. Keeping K alone loses
max(0, max_{j ∉ K} X_j − max_{j ∈ K} X_j). The race ends with the leader if its loss exceeds δ with a
probability within the rung's allowance. Otherwise it keeps the smallest K for which dropping all
others loses anything with a probability within the allowance. Both probabilities are of the form

    P(max_{j ∉ K} X_j > max_{j ∈ K} X_j + δ) = ∫ (1 − Π_{j ∉ K} F_j(x + δ)) d Π_{j ∈ K} F_j(x)

Comparing the best of the dropped with the best of the kept is what saves samples: any survivor may
turn out to be the best, which a comparison with the leader alone ignores.

Each rung has the allowance error / (R − 1), and the unused part of it goes to the next rung. All
probabilities therefore sum to `error` at most. The losses of all rungs sum to the highest full mean
minus the winner's, since each rung compares the best before it with the best after it. So under
this model the full protocol's pick lies more than δ above the winner with probability at most
`error`. The bound holds on average over families like this one, and not for each family.

Both bounds rest on normal approximations. Simulations check them, also in worlds without any true
difference (`tests/selection/test_race.py`, `python -m benchmarks.race`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PRIOR_SAMPLES = 2.0  # weight of the pooled rate of all candidates on a problem
# The integral over the best of the kept: its nodes, and the standard deviations that it covers on
# each side. Probabilities come out to 1e-4.
NODES, REACH = 200, 6.0
# Candidates for √T, up to this many standard deviations of the present means.
SPREADS, WIDEST = 24, 4.0


@dataclass(frozen=True)
class Counts:
    """One benchmark: `correct` out of `n` samples, each (candidates, problems × seeds).

    `full` is the n of the full protocol.
    """

    correct: NDArray[np.int64]
    n: NDArray[np.int64]
    full: int


class Race:
    """One race from its first rung on; `rungs` is the number of all its rungs.

    `error` is the probability of a wrong outcome, `indifference` the zone δ as a share in [0, 1].
    """

    def __init__(self, error: float, rungs: int, indifference: float = 0.0):
        self._indifference = indifference
        self._of_a_rung = error / max(rungs - 1, 1)
        self._unused = 0.0  # of the allowances of earlier rungs
        # Of the candidates that left, by rung.
        self._left_means: list[Floats] = []
        self._left_variances: list[Floats] = []

    def survivors(self, benchmarks: Sequence[Counts]) -> NDArray[np.bool_]:
        """(candidates,) True for those that stay; call it with the survivors' counts at each rung.

        The race is over when one stays.
        """
        means = np.mean([_mean(counts) for counts in benchmarks], axis=0)
        # The variance of a mean over B independent benchmarks is the mean variance divided by B.
        variances = np.mean([_variance(counts) for counts in benchmarks], axis=0) / len(benchmarks)
        if self._indifference == 0:
            return _may_still_win(means, variances, self._of_a_rung)
        allowance = self._unused + self._of_a_rung
        alive, used = self._worth_keeping(means, variances, allowance)
        self._unused = allowance - used
        self._left_means.append(means[~alive])
        self._left_variances.append(variances[~alive])
        return alive

    def _worth_keeping(
        self, means: Floats, variances: Floats, allowance: float
    ) -> tuple[NDArray[np.bool_], float]:
        """The candidates that stay, and how much of the allowance dropping the others uses."""
        order = np.argsort(-means, kind="stable")
        # Candidates that left count for μ and T, else each rung would see only the luckier ones.
        family_means = np.concatenate([*self._left_means, means])
        family_variances = np.concatenate([*self._left_variances, variances])
        expected, deviations = _full_means(
            means[order], variances[order], family_means, family_variances
        )
        kept = 1
        used = _chances_of_loss(expected, deviations, self._indifference)[0]
        if used > allowance:
            # The zone is spent on the end of a race alone: before it, nothing may be lost at all,
            # so that the losses of the rungs do not add up to several δ.
            losses = _chances_of_loss(expected, deviations, 0.0)
            kept += int(np.argmax(losses <= allowance))
            used = losses[kept - 1]
        alive = np.zeros(len(means), dtype=np.bool_)
        alive[order[:kept]] = True
        return alive, float(used)


def _may_still_win(means: Floats, variances: Floats, allowance: float) -> NDArray[np.bool_]:
    """Drop the candidates least likely to end above the leader, as many as the allowance covers."""
    leader = means.argmax()
    ends_above = _ends_above(means[leader] - means, np.sqrt(variances + variances[leader]))
    ends_above[leader] = 1.0
    order = np.argsort(ends_above, kind="stable")
    alive = np.ones(len(means), dtype=np.bool_)
    alive[order[np.cumsum(ends_above[order]) <= allowance]] = False
    return alive


def _ends_above(gaps: Floats, deviations: Floats) -> Floats:
    """Φ(−gap ÷ deviation) of each; without deviation 1 for a gap of 0, and 0 for a larger one."""
    chances = np.where(gaps > 0, 0.0, 1.0)
    for index in np.flatnonzero(deviations > 0):
        # Φ(−x) = erfc(x ÷ √2) ÷ 2. The math module spares the import of scipy.
        chances[index] = math.erfc(gaps[index] / deviations[index] / math.sqrt(2)) / 2
    return chances


def _full_means(
    means: Floats, variances: Floats, of_family: Floats, variances_of_family: Floats
) -> tuple[Floats, Floats]:
    """Expected means under the full protocol, and their standard deviations, (candidates,) each.

    The family's distribution is estimated from the second pair of means and variances.
    """
    spreads = np.linspace(0, WIDEST * of_family.std(), SPREADS)
    # Log of the density of the family's means for each √T, with μ integrated over a flat prior.
    log_density = np.empty(SPREADS)
    for index, spread in enumerate(spreads):
        weights = 1 / np.maximum(variances_of_family + spread**2, 1e-12)
        centre = np.average(of_family, weights=weights)
        log_density[index] = (
            np.log(weights).sum()
            - np.log(weights.sum())
            - (weights * (of_family - centre) ** 2).sum()
        ) / 2
    posterior = np.exp(log_density - log_density.max())
    between = np.average(spreads**2, weights=posterior)  # T
    centre = np.average(of_family, weights=1 / np.maximum(variances_of_family + between, 1e-12))
    shrunk = between / np.maximum(between + variances, 1e-12)
    return centre + shrunk * (means - centre), np.sqrt(shrunk * variances)


def _chances_of_loss(means: Floats, deviations: Floats, zone: float) -> Floats:
    """P(dropping all but the first k loses more than `zone`) for k = 1, 2, …, (candidates,).

    The leader comes first. The integral of the module's docstring is a sum over NODES: both factors
    are cumulative products of normal distribution functions, so that all k take one pass.
    """
    from scipy.special import ndtr  # half a second to import

    # A candidate with (nearly) all samples would be a step that falls between two nodes.
    deviations = np.maximum(deviations, max(deviations.max() / 20, 1e-9))
    lowest = means[0] - REACH * deviations[0]
    highest = (means + REACH * deviations).max()
    nodes = np.linspace(lowest, highest, NODES)
    between = (nodes[1:] + nodes[:-1]) / 2
    best_of_first = np.cumprod(ndtr((nodes[:, None] - means) / deviations), axis=1)
    below = ndtr((between[:, None] + zone - means) / deviations)
    best_of_others = np.ones_like(below)  # after the last candidate comes no other
    best_of_others[:, :-1] = np.cumprod(below[:, :0:-1], axis=1)[:, ::-1]
    return np.sum(np.diff(best_of_first, axis=0) * (1 - best_of_others), axis=0)


def _mean(counts: Counts) -> Floats:
    return (counts.correct / counts.n).mean(axis=1)


def _variance(counts: Counts) -> Floats:
    """Variance of the mean of `full` samples around the mean of the samples so far, (candidates,)."""
    of_problems = _spread(counts) * (1 / counts.n - 1 / counts.full).clip(min=0)
    return of_problems.mean(axis=1) / counts.n.shape[1]


def _spread(counts: Counts) -> Floats:
    """Smoothed θ(1 − θ): a few samples that are all right or all wrong do not make a problem
    certain.

    Each rate is shrunk towards that of all candidates on the same problem. The factor restores the
    spread that the noise of the shrunk rate hides, as n − 1 does in a sample variance.
    """
    pooled = (counts.correct.sum(axis=0) + 0.5) / (counts.n.sum(axis=0) + 1)
    weight = counts.n + PRIOR_SAMPLES
    rate = (counts.correct + PRIOR_SAMPLES * pooled) / weight
    return rate * (1 - rate) * weight / (weight - 1)
