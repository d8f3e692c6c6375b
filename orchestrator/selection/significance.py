"""Computes the t intervals and p-values of a table, over training runs.

`analysis.facts.assess` decides which differences are tested, and scales p-values where one look is
one of several. Bootstrap intervals over problems are in `analysis.facts.intervals`.

Training runs differ far more from each other than sets of problems do, and a handful of seeds is
too few for a bootstrap. Runs scatter unlike under different methods, most of all where some of them
collapse. Each method therefore has a variance of its own, and two methods are compared by Welch's
test, whose degrees of freedom are those of Satterthwaite:

    e² = s₁²/n₁ + s₂²/n₂,    ν = e⁴ / ((s₁²/n₁)²/(n₁ − 1) + (s₂²/n₂)²/(n₂ − 1))

where s_m² is the variance of the scores of method m's n_m runs (Welch 1947, "The generalization of
Student's problem when several different population variances are involved"; Satterthwaite 1946).
Several differences to one control are corrected for their number by Dunnett's test with these
variances (Hasler and Hothorn 2008, "Multiple contrast tests in the presence of
heteroscedasticity"). The benchmark's problems are taken as given: intervals say nothing about other
problems.

The last part computes the power of these tests, for the planning of runs.

No test of means keeps its level where a run collapses with probability p and all n runs of a
method may escape, which happens in (1 − p)ⁿ of sweeps. `collapse_p` compares how many collapsed,
and `permutation_p` assumes no distribution, but that all runs come from the same one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import comb, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Real = Fraction | float

CONFIDENCE = 0.95
LEVEL = 1 - CONFIDENCE
NODES = 48  # of each of the two integrals of `_Largest`: p-values to 1e-4
NOTHING = 1e-12  # a variance of equal scores whose mean is no binary fraction is about 1e-30
LABELLINGS = 20_000  # that are enumerated at most; of more, so many are drawn


@dataclass(frozen=True)
class RunSpread:
    """The standard deviation of a method's runs, how many they are, and whether any two differ."""

    deviation: float
    runs: int
    differ: bool = True

    @property
    def squared_error(self) -> float:
        """The squared standard error of the mean of the runs."""
        return self.deviation**2 / self.runs

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % limits of the standard deviation of all such runs, were these normal."""
        from scipy.special import gammaincinv

        half = (self.runs - 1) / 2
        low, high = (
            sqrt(half / gammaincinv(half, (1 + side * CONFIDENCE) / 2)) for side in (1, -1)
        )
        return low * self.deviation, high * self.deviation


@dataclass(frozen=True)
class TDistribution:
    """A mean, or a difference of means, as t distributed: its standard error and ν.

    `control` is the part of the squared error that comes from the second of two means.
    """

    error: float
    freedom: float
    control: float = 0.0

    def reach(self, level: float = LEVEL) -> float:
        """Half-width of the interval that misses with the probability `level`."""
        from scipy.special import stdtrit  # half a second to import

        return float(stdtrit(self.freedom, 1 - level / 2)) * self.error

    def p_value(self, value: Real) -> float:
        """Two-sided p-value of a value whose expectation is zero."""
        from scipy.special import stdtr

        return 2 * float(stdtr(self.freedom, -abs(float(value)) / self.error))


def spread_of(scores: Sequence[Real], sampling: float = 0.0) -> RunSpread | None:
    """The spread of a method's runs; None for fewer than two.

    `sampling` is the variance that a run's score has by the sampling of responses alone. Two close
    runs are luck where their variance is smaller than that, so it is the least.
    """
    if len(scores) < 2:
        return None
    mean = sum(scores, Fraction(0)) / len(scores)
    variance = sum(float(score - mean) ** 2 for score in scores) / (len(scores) - 1)
    differ = variance > NOTHING
    return RunSpread(sqrt(max(variance if differ else 0.0, sampling)), len(scores), differ)


def pooled(spreads: Sequence[RunSpread]) -> RunSpread:
    """The spread of several methods together; it has as many runs as one method would need for its
    degrees of freedom.
    """
    freedom = sum(spread.runs - 1 for spread in spreads)
    variance = sum((spread.runs - 1) * spread.deviation**2 for spread in spreads) / freedom
    return RunSpread(sqrt(variance), freedom + 1)


def of_mean(spread: RunSpread | None) -> TDistribution | None:
    """The t distribution of the mean of a method's runs; None where no two of them differ."""
    if spread is None or not spread.differ:
        return None
    return TDistribution(sqrt(spread.squared_error), spread.runs - 1)


def of_difference(one: RunSpread | None, other: RunSpread | None) -> TDistribution | None:
    """The t distribution of the difference of two means (Welch).

    None where one of them has a single run, and where no two runs of either method differ: a spread
    of zero would make every difference certain.
    """
    if one is None or other is None or not (one.differ or other.differ):
        return None
    squares = one.squared_error, other.squared_error
    freedom = sum(squares) ** 2 / (
        squares[0] ** 2 / (one.runs - 1) + squares[1] ** 2 / (other.runs - 1)
    )
    return TDistribution(sqrt(sum(squares)), freedom, squares[1] / sum(squares))


@dataclass(frozen=True)
class Adjusted:
    """The corrected p-value of each difference, and the half-width of its interval."""

    p_values: list[float]
    reaches: list[float]


def adjusted(
    differences: Sequence[Real], distributions: Sequence[TDistribution], level: float = LEVEL
) -> Adjusted:
    """Correct the differences of several methods to one control for their number.

    A p-value is the probability that the largest of so many differences would be as many standard
    errors from zero, were all methods equal, with the degrees of freedom of the difference itself
    (Hasler and Hothorn 2008; Dunnett 1955 for equal variances). For a single difference it is that
    of Welch's test. The intervals miss any of the differences with probability `level`.
    """
    if len(differences) == 1:
        # The t test is exact, and the quadrature of `_Largest` only nearly so.
        only = distributions[0]
        return Adjusted([only.p_value(differences[0])], [only.reach(level)])
    corrected = Adjusted([], [])
    largest = _largest(tuple(each.control for each in distributions))
    for difference, own in zip(differences, distributions, strict=True):
        corrected.p_values.append(largest.tail(abs(float(difference)) / own.error, own.freedom))
        corrected.reaches.append(largest.bound(level, own.freedom) * own.error)
    return corrected


class _Largest:
    """P(max |T| > t) over differences to one control, each in its standard error.

    `controls` are the parts that the control has in the squared error of each difference. Given the
    control's mean z and the spread s ÷ σ, the differences are independent; the integral over z is
    tabulated for all t · s ÷ σ, and that over the spread depends on the degrees of freedom.
    """

    def __init__(self, controls: tuple[float, ...]):
        from scipy.special import ndtr

        self._count = len(controls)
        # A method whose runs are all equal has no part of its own, and the integrand a step.
        part = np.minimum(controls, 0.995)
        z = (np.arange(NODES) + 0.5) * (6 / NODES)  # z and −z give the same
        of_z = np.exp(-z * z / 2)
        self._reaches = np.linspace(0, 10, 251)
        # Axes: the reach, z, the methods.
        middle, width = np.sqrt(part) * z[:, None], np.sqrt(1 - part)
        reach = self._reaches[:, None, None]
        inside = ndtr((reach - middle) / width) - ndtr((-reach - middle) / width)
        self._inside = inside.prod(axis=2) @ of_z / of_z.sum()

    def tail(self, t: float, freedom: float) -> float:
        """The probability that t is passed."""
        scale, weights = _spreads(freedom)
        inside = np.interp(t * scale, self._reaches, self._inside)
        return max(0.0, float(1 - inside @ weights))

    def bound(self, level: float, freedom: float) -> float:
        """The t that is passed with the probability `level`.

        It lies between that of a single difference and that of Bonferroni's correction.
        """
        from scipy.optimize import brentq

        alone = TDistribution(1.0, freedom)
        least, most = alone.reach(level), alone.reach(level / self._count)
        root: Any = brentq(
            lambda t: self.tail(t, freedom) - level, 0.9 * least, 1.1 * most, xtol=1e-6
        )
        return root


@lru_cache(maxsize=64)
def _spreads(freedom: float) -> tuple[Array, Array]:
    """Values of s ÷ σ with ν degrees of freedom, and their weights.

    They are at quantiles, more of them where it is small: large values of T come from there.
    """
    from scipy.special import gammaincinv

    at, weights = _legendre()
    root = (1 + at) / 2
    return np.sqrt(2 * gammaincinv(freedom / 2, root**3) / freedom), weights / 2 * 3 * root**2


@lru_cache
def _legendre() -> tuple[Array, Array]:
    return np.polynomial.legendre.leggauss(NODES)


_largest = lru_cache(maxsize=1024)(_Largest)  # what has not changed is judged again on each look


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values in their order, corrected by Holm's step-down procedure (Holm 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected = [0.0] * len(p_values)
    highest = 0.0  # a corrected p-value is never below that of a smaller one
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


def collapse_p(one: tuple[int, int], other: tuple[int, int]) -> float:
    """Two-sided p-value that as many of each method's runs collapse, by Fisher's exact test.

    Both are k of n. It adds the probabilities of all splits that are no likelier than the one seen,
    with the number of collapsed runs fixed (Fisher 1935, "The logic of inductive inference").
    """
    (k, n), (k_other, n_other) = one, other
    collapsed = k + k_other
    ways = [comb(n, j) * comb(n_other, collapsed - j) for j in range(collapsed + 1)]
    return sum(way for way in ways if way <= ways[k]) / comb(n + n_other, collapsed)


def permutation_p(control: Sequence[Real], others: Sequence[Sequence[Real]]) -> list[float]:
    """The p-value of each method's difference to one control, over relabellings of all runs.

    It is the share of labellings whose largest |t| of any method (Welch's) is as large as the
    method's own (Westfall and Young 1993, "Resampling-Based Multiple Testing", §2.6): corrected for
    the number of methods, exact where all runs come from one distribution, whatever its shape. Up
    to `LABELLINGS` all are enumerated, otherwise as many are drawn, always the same ones.
    """
    groups = [np.array(scores, dtype=float) for scores in (control, *others)]
    runs, sizes = np.concatenate(groups), tuple(map(len, groups))
    statistics = _control_t(runs[_labellings(sizes)], sizes)
    # The first labelling is the one that was seen, and ties with itself but for rounding.
    largest = statistics.max(axis=1)[:, None] * (1 + 1e-9)
    return [float(share) for share in (largest >= statistics[0]).mean(axis=0)]


@lru_cache(maxsize=16)
def _labellings(sizes: tuple[int, ...]) -> NDArray[np.int64]:
    """Orders of the runs, (labellings, runs), in which the groups stand one after the other.

    The first is the one that was seen.
    """
    total, count, left = sum(sizes), 1, sum(sizes)
    for size in sizes:
        count *= comb(left, size)
        left -= size
    if count <= LABELLINGS:
        return np.array(list(_splits(tuple(range(total)), sizes)))
    seen = np.arange(total)[None]
    drawn = np.random.default_rng(total).permuted(np.tile(seen, (LABELLINGS - 1, 1)), axis=1)
    return np.concatenate([seen, drawn])


def _splits(runs: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All ways to deal the runs to groups of these sizes."""
    if len(sizes) == 1:
        yield runs
        return
    for group in itertools.combinations(runs, sizes[0]):
        rest = tuple(run for run in runs if run not in group)
        for others in _splits(rest, sizes[1:]):
            yield group + others


def _control_t(labelled: Array, sizes: tuple[int, ...]) -> Array:
    """|t| of each group against the first, (labellings, groups − 1), of runs (labellings, runs).

    Without any spread it is zero for equal means, and infinite for others.
    """
    groups = np.split(labelled, np.cumsum(sizes)[:-1], axis=1)
    means = np.stack([group.mean(axis=1) for group in groups], axis=1)
    squares = np.stack([group.var(axis=1, ddof=1) / group.shape[1] for group in groups], axis=1)
    gaps = np.abs(means[:, 1:] - means[:, :1])
    errors = np.sqrt(squares[:, 1:] + squares[:, :1])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(gaps < NOTHING, 0.0, gaps / np.where(errors > NOTHING, errors, 0.0))


# --- power: the difference that so many runs find, and the runs that find a difference ---

# Noncentral t has the power of the t test with a pooled variance. Welch's test has less of it with
# few runs, .67 instead of .96 for eight standard deviations with two runs a method. Its power is
# therefore integrated over the two variances that the runs may show (`_spreads`).

POWER = 0.8
MOST_RUNS = 100_000  # more of them are not looked for


@dataclass(frozen=True)
class Comparison:
    """A method and its control before they run: normal scores with these standard deviations.

    `compared` methods are tested against the control, and p-values corrected for their number.
    """

    deviation: float
    control: float
    compared: int = 1

    def power(self, difference: float, runs: int, level: float = LEVEL) -> float:
        """The probability that `runs` of each of the two find the difference at the `level`.

        It is exact without a correction. With one, its critical value takes the standard deviations
        as known, and those of the other methods as equal to the method's own.
        """
        from scipy.special import ndtr

        scale, weights = _spreads(runs - 1)
        own, other = self.deviation**2 / runs, self.control**2 / runs
        squares = own * scale[:, None] ** 2, other * scale**2  # of the errors that the runs show
        shown = squares[0] + squares[1]
        freedom = (runs - 1) * shown**2 / (squares[0] ** 2 + squares[1] ** 2)
        reach, error = self._critical(freedom, runs, level) * np.sqrt(shown), sqrt(own + other)
        found = ndtr((difference - reach) / error) + ndtr((-difference - reach) / error)
        return float(weights @ found @ weights)

    def runs_needed(self, difference: float, power: float = POWER) -> int | None:
        """The fewest runs a method that find the difference; None for more than MOST_RUNS."""
        few, enough = 1, 2
        while self.power(difference, enough) < power:
            if enough >= MOST_RUNS:
                return None
            few, enough = enough, min(2 * enough, MOST_RUNS)
        while enough - few > 1:
            middle = (few + enough) // 2
            if self.power(difference, middle) < power:
                few = middle
            else:
                enough = middle
        return enough

    def seen(self, runs: int, power: float = POWER) -> float:
        """The difference that `runs` of each of the two find with the probability `power`."""
        from scipy.optimize import brentq

        error = sqrt((self.deviation**2 + self.control**2) / runs)
        root: Any = brentq(lambda errors: self.power(errors * error, runs) - power, 0, 1e4)
        return root * error

    def _critical(self, freedom: Array, runs: int, level: float) -> Array:
        """How many standard errors a difference with so many degrees of freedom has to pass."""
        part = self.control**2 / (self.deviation**2 + self.control**2)
        at, bounds = _bounds(round(part, 6), self.compared, runs, level)
        return np.exp(np.interp(1 / freedom, at, bounds))


@lru_cache(maxsize=1024)
def _bounds(part: float, compared: int, runs: int, level: float) -> tuple[Array, Array]:
    """1 ÷ ν for degrees of freedom that two methods of `runs` may show, and log bounds there."""
    at = np.linspace(0.5, 1, 33) / (runs - 1)
    bounds = []
    for share in at:
        # As in `adjusted`, a single difference has Student's own bound.
        alone = TDistribution(1.0, 1 / float(share))
        largest = _largest((part,) * compared)
        bounds.append(alone.reach(level) if compared == 1 else largest.bound(level, alone.freedom))
    return at, np.log(bounds)
