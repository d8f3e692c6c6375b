"""The power of the tests over runs: against scipy, known numbers, and simulated sweeps."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from scipy import stats

from orchestrator.selection import significance
from orchestrator.selection.significance import Comparison, RunSpread

# Runs a method that find .4 points, by s.d.: without a correction, and for each of six comparisons
# by Bonferroni's correction and by the project's own (Dunnett's), which needs fewer.
NEEDED = {0.3: (10, 16, 15), 0.5: (26, 40, 38), 0.7: (50, 76, 73), 1.0: (100, 154, 147)}


@pytest.mark.parametrize("deviation", NEEDED)
def test_runs_that_find_a_difference(deviation: float) -> None:
    alone, bonferroni, dunnett = NEEDED[deviation]
    one, six = Comparison(deviation, deviation), Comparison(deviation, deviation, compared=6)
    assert (one.runs_needed(0.4), six.runs_needed(0.4)) == (alone, dunnett)
    assert one.power(0.4, bonferroni, 0.05 / 6) >= 0.8 > one.power(0.4, bonferroni - 1, 0.05 / 6)


@pytest.mark.parametrize(("runs", "within"), [(10, 5e-3), (26, 1e-3), (100, 1e-4)])
def test_with_many_runs_it_is_the_power_of_students_test(runs: int, within: float) -> None:
    """Welch's test gives up some degrees of freedom, few of them where there are many."""
    freedom = 2 * runs - 2
    bound = stats.t.ppf(0.975, freedom)
    for difference in (0.1, 0.4, 1.0):
        shift = difference / (0.8 * sqrt(2 / runs))
        expected = stats.nct.sf(bound, freedom, shift) + stats.nct.cdf(-bound, freedom, shift)
        found = Comparison(0.8, 0.8).power(difference, runs)
        assert found == pytest.approx(expected, abs=within)
        assert found <= expected + 1e-6


@pytest.mark.parametrize("runs", [2, 3, 10])
def test_without_a_difference_it_is_the_level(runs: int) -> None:
    """Below 5 % with few runs, where Welch's test is careful."""
    found = Comparison(1.0, 1.0).power(0.0, runs)
    assert (0.045 if runs == 10 else 0.01) < found < 0.05


@pytest.mark.parametrize(("deviation", "control"), [(1.0, 1.0), (1.0, 3.0), (0.0, 1.0)])
@pytest.mark.parametrize("runs", [2, 3, 5, 12])
def test_as_many_simulated_differences_are_found(
    runs: int, deviation: float, control: float
) -> None:
    """By scipy's Welch test, which the project's equals: 20,000 sweeps within 4 standard errors."""
    difference = Comparison(deviation, control).seen(runs)
    generator = np.random.default_rng(runs)
    ours = generator.normal(difference, deviation, (20_000, runs))
    theirs = generator.normal(0, control, (20_000, runs))
    squares = ours.var(axis=1, ddof=1) / runs, theirs.var(axis=1, ddof=1) / runs
    freedom = (runs - 1) * (squares[0] + squares[1]) ** 2 / (squares[0] ** 2 + squares[1] ** 2)
    gaps = ours.mean(axis=1) - theirs.mean(axis=1)
    t = abs(gaps) / np.sqrt(squares[0] + squares[1])
    share = float((2 * stats.t.sf(t, freedom) < 0.05).mean())
    assert share == pytest.approx(0.8, abs=4 * sqrt(0.8 * 0.2 / 20_000))


@pytest.mark.parametrize(("runs", "compared", "within"), [(3, 1, 0.0), (3, 3, 0.02), (6, 3, 0.01)])
def test_as_many_are_found_by_the_projects_own_test(
    runs: int, compared: int, within: float
) -> None:
    """Of 1,000 sweeps within 4 standard errors, and `within` where the correction of a sweep rests
    on the variances that it shows, which the power takes as known: it finds a little more.
    """
    difference = Comparison(1.0, 1.0, compared).seen(runs)
    generator, found = np.random.default_rng(compared), 0
    for _ in range(1000):
        scores = generator.normal(0, 1, (compared + 1, runs))
        scores[1] += difference
        spreads = [significance.spread_of(of_method.tolist()) for of_method in scores]
        distributions, gaps = [], []
        for method in range(1, compared + 1):
            compared_with = significance.of_difference(spreads[method], spreads[0])
            assert compared_with is not None
            distributions.append(compared_with)
            gaps.append(float(scores[method].mean() - scores[0].mean()))
        found += significance.adjusted(gaps, distributions).p_values[0] < 0.05
    error = 4 * sqrt(0.8 * 0.2 / 1000)
    assert 0.8 - error <= found / 1000 <= 0.8 + error + within


def test_more_runs_than_are_looked_for() -> None:
    assert Comparison(100.0, 100.0).runs_needed(0.01) is None


def test_spreads_are_pooled_by_their_degrees_of_freedom() -> None:
    found = significance.pooled([RunSpread(1.0, 3), RunSpread(2.0, 5)])
    assert (found.deviation, found.runs) == (pytest.approx(sqrt((2 * 1 + 4 * 4) / 6)), 7)


def test_limits_of_a_standard_deviation() -> None:
    low, high = RunSpread(1.5, 5).interval
    assert low == pytest.approx(1.5 * sqrt(4 / stats.chi2.ppf(0.975, 4)))
    assert high == pytest.approx(1.5 * sqrt(4 / stats.chi2.ppf(0.025, 4)))
