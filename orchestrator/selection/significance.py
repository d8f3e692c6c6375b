"""Intervals and p-values over training runs: t, with the variance between seeds pooled over the
methods of a setup. Every p-value of a table is computed here.

What differs from one training run to the next is far more than what differs from one set of
problems to the next, and a handful of seeds is too few for a bootstrap. All methods of a setup take
the same number of steps on the same data. Their runs are taken to scatter alike, so each method adds
its degrees of freedom to one variance:

    s² = Σ_m Σ_i (x_mi − x̄_m)² / Σ_m (n_m − 1)

where x_mi is the score of method m's selected checkpoint trained with seed i (Student 1908; Cox and
Reid, "The Theory of the Design of Experiments", §2.2). The problems are those of the benchmark:
what is said holds for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import sqrt
from typing import Any

import numpy as np

CONFIDENCE = 0.95
NODES = 40  # of each of the two integrals: p-values to 3e-5


@dataclass(frozen=True)
class SeedSpread:
    """Standard deviation of one run's score around the mean of its method, and its degrees of
    freedom.
    """

    deviation: float
    freedom: int


def pool(methods: Iterable[Sequence[Fraction | float]]) -> SeedSpread | None:
    """The spread between seeds from the scores of each method's runs.

    Methods of one run say nothing of it. None unless one has two, and where no two runs of a method
    differ, as with a few easy problems: a spread of nothing would make every difference certain.
    """
    squares, freedom = 0.0, 0
    for scores in methods:
        mean = sum(scores, Fraction(0)) / max(1, len(scores))
        squares += sum(float(score - mean) ** 2 for score in scores)
        freedom += max(0, len(scores) - 1)
    # Equal scores whose mean is no binary fraction leave squares of about 1e-30.
    return SeedSpread(sqrt(squares / freedom), freedom) if freedom and squares > 1e-12 else None


def reach(spread: SeedSpread, *runs: int) -> float:
    """Half-width of the interval of a mean over so many runs, or of the difference of two such
    means.
    """
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
    """Corrects the differences of several methods to one control for their number, by Dunnett's
    test.

    `runs` are the training runs of each method, `control` those of the control. A p-value is the
    probability that the largest of so many differences would be as many standard errors from zero,
    were all methods equal (Dunnett 1955, "A multiple comparison procedure for comparing several
    treatments with a control"); with a single difference that is the p-value of the t test. The
    intervals miss any of the differences with probability `level`.
    """
    if len(differences) == 1 and level == 1 - CONFIDENCE:
        return Adjusted(
            [p_value(differences[0], spread, runs[0], control)], [reach(spread, runs[0], control)]
        )
    largest = _largest(tuple(count / (count + control) for count in runs), spread.freedom)
    errors = [_standard_error(spread, (count, control)) for count in runs]
    p_values = [
        largest.tail(abs(float(gap)) / error)
        for gap, error in zip(differences, errors, strict=True)
    ]
    return Adjusted(p_values, [largest.bound(level) * error for error in errors])


@dataclass(frozen=True)
class Adjusted:
    """The corrected p-value of each difference, and the half-width of its interval."""

    p_values: list[float]
    reaches: list[float]


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number by Holm's step-down procedure (Holm 1979), in their
    order.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, highest = [0.0] * len(p_values), 0.0
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

        self._ndtr, self._shares = ndtr, np.array(shares)
        self._z, weights = np.polynomial.hermite_e.hermegauss(NODES)
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
            found: Any = brentq(lambda t: self.tail(t) - level, 0.0, 1e4, xtol=1e-9)
            self._bounds[level] = found
        return self._bounds[level]

    def tail(self, t: float) -> float:
        """The probability that t is passed."""
        middle = np.sqrt(self._shares) * self._z[:, None, None]
        reach = t * self._scale[None, :, None]
        width = np.sqrt(1 - self._shares)
        inside = self._ndtr((reach - middle) / width) - self._ndtr((-reach - middle) / width)
        # Far out the sums of the quadrature round to slightly more than 1.
        return max(0.0, float(1 - self._of_z @ inside.prod(axis=2) @ self._of_scale))


_largest = lru_cache(maxsize=256)(_Largest)  # the columns of a table have the same numbers of runs


def _standard_error(spread: SeedSpread, runs: Sequence[int]) -> float:
    return spread.deviation * sqrt(sum(1 / count for count in runs))
