"""Computes the t intervals and p-values of a table, over training runs.

`analysis.facts.assess` decides which differences are tested, and scales p-values where one look is
one of several. Bootstrap intervals over problems are in `analysis.facts.intervals`.

Training runs differ far more from each other than sets of problems do, and a handful of seeds is
too few for a bootstrap. All methods of a setup take the same number of steps on the same data.
Seeds are taken to vary equally under all of them, so each method adds its degrees of freedom to one
variance:

    s² = Σ_m Σ_i (x_mi − x̄_m)² / Σ_m (n_m − 1)

where x_mi is the score of method m's selected checkpoint trained with seed i (Student 1908; Cox and
Reid, "The Theory of the Design of Experiments", §2.2). `brown_forsythe` tests that assumption. The
benchmark's problems are taken as given: intervals say nothing about other problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CONFIDENCE = 0.95
UNEQUAL = 0.01  # p-value of `brown_forsythe` below which a table says that seeds vary unequally
FEWEST_TO_VARY = 3  # runs of a method: the distances of two runs from their median are equal
NODES = 40  # of each of the two integrals: p-values to 3e-5


@dataclass(frozen=True)
class SeedSpread:
    """Standard deviation of a run's score around its method's mean, and its degrees of freedom."""

    deviation: float
    freedom: int


def pool(methods: Iterable[Sequence[Fraction | float]]) -> SeedSpread | None:
    """The spread between seeds from the scores of each method's runs.

    None if no method has two runs. None also if all runs of each method have equal scores, as with
    a few easy problems: a spread of zero would make every difference certain.
    """
    squares = 0.0
    freedom = 0
    for scores in methods:
        mean = sum(scores, Fraction(0)) / max(1, len(scores))
        for score in scores:
            squares += float(score - mean) ** 2
        freedom += max(0, len(scores) - 1)
    # Equal scores whose mean is no binary fraction leave squares of about 1e-30.
    if freedom == 0 or squares <= 1e-12:
        return None
    return SeedSpread(sqrt(squares / freedom), freedom)


def brown_forsythe(methods: Iterable[Sequence[Fraction | float]]) -> float | None:
    """The p-value of the assumption that seeds vary equally under all methods.

    It is that of an analysis of variance of the distances |x_mi − median_m| (Brown and Forsythe
    1974, "Robust tests for the equality of variances"). Methods with fewer than three runs say
    nothing of their variance and are left out; None where fewer than two are left, or where all
    distances within each method are equal.
    """
    from scipy.special import fdtrc

    distances: list[Array] = []
    for scores in methods:
        if len(scores) >= FEWEST_TO_VARY:
            runs = np.array(scores, dtype=float)
            distances.append(np.abs(runs - np.median(runs)))
    if len(distances) < 2:
        return None
    everything = np.concatenate(distances)
    between = within = 0.0
    for of_method in distances:
        between += len(of_method) * (of_method.mean() - everything.mean()) ** 2
        within += float(((of_method - of_method.mean()) ** 2).sum())
    if within <= 1e-12:  # equal but for rounding
        return None
    freedom = len(distances) - 1, len(everything) - len(distances)
    return float(fdtrc(*freedom, (between / freedom[0]) / (within / freedom[1])))


def reach(spread: SeedSpread, *runs: int) -> float:
    """Half-width of the interval of a mean over `runs`, or of the difference of two such means."""
    from scipy.special import stdtrit  # half a second to import

    return float(stdtrit(spread.freedom, (1 + CONFIDENCE) / 2)) * _standard_error(spread, runs)


def p_value(difference: Fraction | float, spread: SeedSpread, *runs: int) -> float:
    """Two-sided p-value of the difference of two means over so many runs each."""
    from scipy.special import stdtr

    return 2 * float(stdtr(spread.freedom, -abs(float(difference)) / _standard_error(spread, runs)))


def adjusted(
    differences: Sequence[Fraction | float],
    spread: SeedSpread,
    runs: Sequence[int],
    control: int,
    level: float = 1 - CONFIDENCE,
) -> Adjusted:
    """Correct the differences of several methods to one control for their number (Dunnett's test).

    `runs` are the training runs of each method, `control` those of the control. A p-value is the
    probability that the largest of so many differences would be as many standard errors from zero,
    were all methods equal (Dunnett 1955, "A multiple comparison procedure for comparing several
    treatments with a control"). For a single difference it is the p-value of the t test. The
    intervals miss any of the differences with probability `level`.
    """
    if len(differences) == 1 and level == 1 - CONFIDENCE:
        # The t test is exact, and the quadrature of `_Largest` only nearly so.
        p = p_value(differences[0], spread, runs[0], control)
        return Adjusted([p], [reach(spread, runs[0], control)])
    largest = _largest(tuple(count / (count + control) for count in runs), spread.freedom)
    p_values: list[float] = []
    reaches: list[float] = []
    for difference, count in zip(differences, runs, strict=True):
        error = _standard_error(spread, (count, control))
        p_values.append(largest.tail(abs(float(difference)) / error))
        reaches.append(largest.bound(level) * error)
    return Adjusted(p_values, reaches)


@dataclass(frozen=True)
class Adjusted:
    """The corrected p-value of each difference, and the half-width of its interval."""

    p_values: list[float]
    reaches: list[float]


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values in their order, corrected by Holm's step-down procedure (Holm 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected = [0.0] * len(p_values)
    highest = 0.0  # a corrected p-value is never below that of a smaller one
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


class _Largest:
    """P(max |T| > t) over differences to one control, each in its standard error.

    Given the control's mean and the spread, the differences are independent, so that the
    probability is an integral over these two. `shares` are n ÷ (n + control's n) of each method.
    """

    def __init__(self, shares: tuple[float, ...], freedom: int):
        from scipy.special import gammaincinv, ndtr

        self._ndtr = ndtr
        self._shares = np.array(shares)
        self._z, weights = np.polynomial.hermite_e.hermegauss(NODES)  # the control's mean
        self._of_z = weights / weights.sum()
        at, weights = np.polynomial.legendre.leggauss(NODES)
        # Nodes at quantiles of s ÷ σ, more of them where it is small: large values of T come from
        # there.
        root = (1 + at) / 2
        self._scale = np.sqrt(2 * gammaincinv(freedom / 2, root**3) / freedom)
        self._of_scale = weights / 2 * 3 * root**2
        self._bounds: dict[float, float] = {}

    def bound(self, level: float) -> float:
        """The t that is passed with the probability `level`."""
        from scipy.optimize import brentq

        if level not in self._bounds:
            root: Any = brentq(lambda t: self.tail(t) - level, 0.0, 1e4, xtol=1e-9)
            self._bounds[level] = root
        return self._bounds[level]

    def tail(self, t: float) -> float:
        """The probability that t is passed."""
        # Axes: the control's mean, the spread, the methods.
        middle = np.sqrt(self._shares) * self._z[:, None, None]
        reach = t * self._scale[None, :, None]
        width = np.sqrt(1 - self._shares)
        inside = self._ndtr((reach - middle) / width) - self._ndtr((-reach - middle) / width)
        # Far out the sums of the quadrature round to slightly more than 1.
        return max(0.0, float(1 - self._of_z @ inside.prod(axis=2) @ self._of_scale))


_largest = lru_cache(maxsize=256)(_Largest)  # the columns of a table have the same numbers of runs


def _standard_error(spread: SeedSpread, runs: Sequence[int]) -> float:
    return spread.deviation * sqrt(sum(1 / count for count in runs))
