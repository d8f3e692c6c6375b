"""Intervals and p-values over training runs: t, with the variance between seeds pooled over the methods of a setup.

What differs from one training run to the next is far more than what differs from one set of problems to the next, and
a handful of seeds is too few for a bootstrap. Every method of a setup trains for as long on as much, so their runs
scatter alike, and each adds its degrees of freedom to one variance:

    s² = Σ_m Σ_i (x_mi − x̄_m)² / Σ_m (n_m − 1)

where x_mi is the score of method m's selected checkpoint trained with seed i (Student 1908; Cox and Reid, "The Theory
of the Design of Experiments", §2.2). The problems are those of the benchmark: what is said holds for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt

from analysis.scores.uncertainty import CONFIDENCE


@dataclass(frozen=True)
class SeedSpread:
    """Standard deviation of one run's score around the mean of its method, and its degrees of freedom."""

    deviation: float
    freedom: int


def pool(methods: Iterable[Sequence[Fraction | float]]) -> SeedSpread | None:
    """The spread between seeds from the scores of each method's runs.

    Methods of one run say nothing of it. None unless one has two, and where no two runs of a method differ, as with a
    few easy problems: a spread of nothing would make every difference certain.
    """
    squares, freedom = 0.0, 0
    for scores in methods:
        mean = sum(scores, Fraction(0)) / max(1, len(scores))
        squares += sum(float(score - mean) ** 2 for score in scores)
        freedom += max(0, len(scores) - 1)
    # Equal scores whose mean is no binary fraction leave squares of about 1e-30.
    return SeedSpread(sqrt(squares / freedom), freedom) if freedom and squares > 1e-12 else None


def reach(spread: SeedSpread, *runs: int) -> float:
    """Half-width of the interval of a mean over so many runs, or of the difference of two such means."""
    from scipy.special import stdtrit  # half a second to import

    return float(stdtrit(spread.freedom, (1 + CONFIDENCE) / 2)) * _standard_error(spread, runs)


def p_value(difference: Fraction | float, spread: SeedSpread, *runs: int) -> float:
    """Two-sided p-value of the difference of two means over so many runs each."""
    from scipy.special import stdtr

    return 2 * float(stdtr(spread.freedom, -abs(float(difference)) / _standard_error(spread, runs)))


def _standard_error(spread: SeedSpread, runs: Sequence[int]) -> float:
    return spread.deviation * sqrt(sum(1 / count for count in runs))
