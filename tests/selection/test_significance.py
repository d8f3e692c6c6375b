"""t intervals over training runs against scipy, by hand, and in simulated sweeps of equal methods."""

from __future__ import annotations

from fractions import Fraction
from math import sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from orchestrator.selection import significance
from orchestrator.selection.significance import SeedSpread

Array = NDArray[np.float64]


def test_the_spread_is_pooled_over_the_methods() -> None:
    found = significance.pool([[1.0, 3.0], [10.0, 10.0, 13.0], [99.0]])
    assert found is not None
    assert found.freedom == 3
    assert found.deviation == pytest.approx(sqrt((2 + 6) / 3))


@pytest.mark.parametrize(
    "methods", [[], [[5.0], [7.0]], [[5.0, 5.0], [7.0, 7.0, 7.0]], [[Fraction(1, 3)] * 3]]
)
def test_there_is_no_spread_without_two_runs_that_differ(methods: list[list[float]]) -> None:
    assert significance.pool(methods) is None


def test_variances_are_compared_as_by_levenes_test_around_the_median() -> None:
    methods = [[50.0, 52.0, 55.0, 51.0], [48.0, 12.0, 71.0], [1.0, 2.0, 4.0, 9.0], [3.0, 90.0]]
    expected: Any = stats.levene(*methods[:3], center="median")
    found = significance.brown_forsythe(methods)
    assert found == pytest.approx(expected.pvalue), "two runs say nothing of their variance"


@pytest.mark.parametrize(
    "methods", [[], [[1.0, 2.0, 4.0]], [[1.0, 2.0], [3.0, 9.0]], [[5.0] * 3, [7.0] * 4]]
)
def test_the_variance_of_one_method_or_of_equal_runs_is_not_compared(
    methods: list[list[float]],
) -> None:
    assert significance.brown_forsythe(methods) is None


def test_two_methods_are_compared_as_by_students_test() -> None:
    one, other = [50.0, 52.0, 55.0], [48.0, 47.0, 51.0, 50.0]
    spread = significance.pool([one, other])
    assert spread is not None
    expected: Any = stats.ttest_ind(one, other)
    difference = float(np.mean(one) - np.mean(other))
    assert significance.p_value(difference, spread, 3, 4) == pytest.approx(expected.pvalue)
    limits = expected.confidence_interval(0.95)
    assert difference - significance.reach(spread, 3, 4) == pytest.approx(limits.low)
    assert difference + significance.reach(spread, 3, 4) == pytest.approx(limits.high)


def test_the_mean_of_one_method_has_students_interval() -> None:
    scores = [50.0, 52.0, 55.0, 51.0]
    spread = significance.pool([scores])
    assert spread is not None
    low, high = stats.t.interval(0.95, 3, np.mean(scores), stats.sem(scores))
    assert 2 * significance.reach(spread, 4) == pytest.approx(high - low)


@pytest.mark.parametrize("difference", [0.0, 0.3, 2.0, 4.4, 40.0])
def test_p_goes_with_the_interval(difference: float) -> None:
    spread = SeedSpread(2.0, 6)
    reach = significance.reach(spread, 3, 3)
    for value in (difference, -difference, Fraction(difference)):
        assert (significance.p_value(value, spread, 3, 3) < 0.05) == (abs(difference) > reach)
    assert significance.p_value(0.0, spread, 3, 3) == 1.0


def final_scores(
    generator: np.random.Generator, count: int, between: float, checkpoints: int
) -> Array:
    """Scores (7, seeds) in percent of the checkpoints that methods without any difference are shown
    with.

    A sweep like the embedded one: 2 benchmarks of 200 problems, the same for all, 4 samples of each
    problem. There are 40 pass rates around one half, 10 problems of each. A training run moves the
    logit of every problem alike, so that its average scatters by about `between` points of standard
    deviation. A method has `checkpoints` of each run, which scatter half as much about their run;
    as in a sweep, the one whose mean over seeds is the highest is selected, on the same samples.
    """
    problems = generator.normal(0, 1.5, 40)
    slope = float((np.exp(-problems) / (1 + np.exp(-problems)) ** 2).mean())
    size = (7, count, checkpoints, 1)
    shifts = generator.normal(0, between / 100 / slope, (7, count, 1, 1))
    shifts = shifts + generator.normal(0, between / 200 / slope, size) * (checkpoints > 1)
    right = generator.binomial(10 * 4, 1 / (1 + np.exp(-problems - shifts)))
    scores = (
        100 * right.mean(axis=-1) / 40
    )  # both benchmarks have as many problems, so this is their mean
    chosen = scores.mean(axis=1).argmax(axis=1)
    return scores[np.arange(7), :, chosen]


@pytest.mark.parametrize("checkpoints", [1, 3])
@pytest.mark.parametrize("between", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_equal_methods_are_seldom_called_different(
    count: int, between: float, checkpoints: int
) -> None:
    """Share of comparisons with vanilla that are called a difference at the 5 % level: at most 7 %.

    400 sweeps of 7 equal methods, 2,400 comparisons for each case, with the project's own spread, p
    and interval. Simulated are training runs, sampling of responses and selection among equally
    many checkpoints of each method (their dependence within a run included). Not simulated:
    families of different sizes, whose maximum is higher the larger they are and of which the table
    says so, and methods that scatter more than others.
    """
    generator = np.random.default_rng(10_000 * count + 100 * int(between) + checkpoints)
    called = comparisons = 0
    for _ in range(400):
        scores = final_scores(generator, count, between, checkpoints)
        spread = significance.pool(scores.tolist())
        assert spread is not None
        means = scores.mean(axis=1)
        for mean in means[1:]:
            shown = significance.p_value(mean - means[0], spread, count, count) < 0.05
            assert shown == (abs(mean - means[0]) > significance.reach(spread, count, count))
            called, comparisons = called + shown, comparisons + 1
    assert called / comparisons <= 0.07
    # Selection makes the runs of different methods more alike than the spread within a method.
    assert called / comparisons >= (0.02 if checkpoints == 1 else 0.001), (
        "a test that calls nothing would pass too"
    )


def test_a_difference_that_is_there_is_found() -> None:
    """5 points with a standard deviation of 2 between runs: most often, from five seeds on."""
    generator = np.random.default_rng(3)
    found = []
    for _ in range(200):
        scores = generator.normal(0, 2, (7, 5))
        scores[1] += 5
        spread = significance.pool(scores.tolist())
        assert spread is not None
        found.append(significance.p_value(scores[1].mean() - scores[0].mean(), spread, 5, 5) < 0.05)
    assert np.mean(found) > 0.9


def test_p_is_a_probability_however_large_the_difference() -> None:
    adjusted = significance.adjusted([80.0, -20.0, 0.1], SeedSpread(1.2, 60), [5, 5, 5], 5)
    assert all(0 <= p <= 1 for p in adjusted.p_values)
    assert adjusted.p_values[0] <= adjusted.p_values[1] < 1e-9
