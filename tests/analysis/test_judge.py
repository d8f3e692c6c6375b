"""How often equal methods are called different, and unequal ones are found, from counts to the
judgement.
"""

from __future__ import annotations

import itertools
import zlib
from dataclasses import replace
from fractions import Fraction
from math import sqrt
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.facts.assess import leave_one_seed_out, to_reference
from analysis.facts.candidates import Candidate
from orchestrator.selection import significance
from orchestrator.selection.confirmation import LOOKS, open_methods
from orchestrator.selection.scores import Tally
from orchestrator.selection.significance import RunSpread, TDistribution
from tests.judge_world import (
    METHODS,
    TRB,
    UNLIKE,
    VANILLA,
    Judged,
    Runs,
    Shape,
    World,
    called_different,
    decided,
    judged,
    scattered,
)

SHAPES: tuple[Shape, ...] = ("normal", "skewed")


def simulated(world: World, repetitions: int) -> list[Judged]:
    """The same for the same world; different worlds draw different numbers."""
    generator = np.random.default_rng(zlib.crc32(repr(world).encode()))
    return [judged(generator, world) for _ in range(repetitions)]


def test_equal_methods_are_seldom_called_different_whatever_their_grids() -> None:
    """Each comparison, and any of the six of a sweep: at most 6 %, over grids, seeds, spreads and
    shapes together.

    `benchmarks.judge` takes thousands of sweeps for each of these worlds.
    """
    found: list[Judged] = []
    for count, between, shape in itertools.product((2, 3, 5), (0.0, 1.0, 4.0), SHAPES):
        found += simulated(World("one each", count, count, between, shape), 70)
        found += simulated(World("paper-small", count, count, between, shape), 30)
        found += simulated(World("paper", count, count, between, shape), 15)
    of_each = np.array([[*judgement.confirmed.values()] for judgement in found])
    assert of_each.mean(axis=0).max() <= 0.06
    assert 0.02 <= of_each.any(axis=1).mean() <= 0.06


def test_without_confirmation_the_largest_grid_would_win_by_chance() -> None:
    """The naive test calls TRB different more than twice as often as it may; its lead is luck."""
    found = simulated(World("paper", seeds=3, between=1.0), 200)
    assert np.mean([judgement.naive[TRB] for judgement in found]) > 0.10
    assert np.mean([judgement.lead for judgement in found]) > 1.0


def test_looking_until_decided_keeps_the_level() -> None:
    """Equal methods, seeds added in rounds until each difference is within ± 1 point or apart from
    zero.
    """
    found = []
    for between, shape in itertools.product((0.5, 1.0, 4.0), SHAPES):
        generator = np.random.default_rng(zlib.crc32(f"{between} {shape}".encode()))
        found += [decided(generator, World(between=between, shape=shape), 1.0) for _ in range(150)]
    different = np.array([[*judgement.values()] for judgement, _ in found])
    assert different.mean(axis=0).max() <= 0.06
    assert 0.005 <= different.any(axis=1).mean() <= 0.06


def test_looking_until_decided_stops_early_where_it_can() -> None:
    """Runs half a point apart settle ± 2 points in two of five rounds, since three runs a method tell
    little of its spread; runs four points apart take all rounds.
    """
    generator = np.random.default_rng(5)
    least, most = 3 * len(METHODS), 3 * LOOKS * len(METHODS)
    assert (
        np.mean([decided(generator, World(between=0.5), 2.0)[1] for _ in range(30)]) < 2.1 * least
    )
    assert np.mean([decided(generator, World(between=4.0), 2.0)[1] for _ in range(30)]) > 0.9 * most
    ahead = [decided(generator, World(between=1.0, ahead=3.0), 0.5)[0][TRB] for _ in range(60)]
    assert np.mean(ahead) > 0.95


def test_a_method_that_is_ahead_is_found() -> None:
    """Six points ahead, runs a point apart: four confirming seeds show it nearly always, and three
    most often.
    """
    found = simulated(replace(World("paper-small", seeds=2, confirming=3), ahead=6.0), 60)
    assert np.mean([judgement.confirmed[TRB] for judgement in found]) > 0.75
    found = simulated(replace(World("paper-small", seeds=2, confirming=4), ahead=6.0), 60)
    assert np.mean([judgement.confirmed[TRB] for judgement in found]) > 0.9


def test_leaving_a_seed_out_removes_the_luck_of_the_choice() -> None:
    """Settings that are equal: the best of 20 leads by more than half a spread; on a seed left out
    it does not.
    """
    generator = np.random.default_rng(8)
    shown, left_out = [], []
    for _ in range(300):
        right = generator.binomial(400, 0.5, (20, 3, 1)) + generator.integers(-20, 21, (20, 3, 1))
        n = np.array([400])
        pool = [
            Candidate(
                "skd",
                {},
                step,
                ("a", "b", "c"),
                {"bench": tuple(Tally(n, seed) for seed in of_seeds)},
            )
            for step, of_seeds in enumerate(right)
        ]
        found = leave_one_seed_out(pool)
        assert found is not None
        shown.append(100 * float(max(candidate.mean for candidate in pool)))
        left_out.append(found["avg"])
    assert np.mean(shown) > 52
    assert np.mean(left_out) == pytest.approx(50, abs=0.5)


# --- runs that scatter unlike under methods with equal means ---


def shares(world: str, runs: int, sweeps: int) -> tuple[float, float]:
    """The largest share of a method that is called different, and of sweeps that call any so."""
    generator = np.random.default_rng(zlib.crc32(f"{world} {runs}".encode()))
    found = [[*called_different(scattered(generator, world, runs)).values()] for _ in range(sweeps)]
    called = np.array(found)
    return called.mean(axis=0).max(), called.any(axis=1).mean()


@pytest.mark.parametrize("runs", [3, 5])
@pytest.mark.parametrize(
    "world", [world for world in UNLIKE if world not in ("vanilla collapses", "TRB collapses")]
)
def test_unlike_spreads_do_not_make_a_difference(world: str, runs: int) -> None:
    """Each comparison, and any of the six: at most 6 %, and 7.5 % for any where all collapse."""
    of_each, of_any = shares(world, runs, 500)
    assert of_each <= 0.06
    assert of_any <= (0.075 if world == "all collapse" else 0.06)


@pytest.mark.parametrize("world", ["vanilla collapses", "TRB collapses"])
def test_where_one_method_collapses_ten_runs_are_needed(world: str) -> None:
    """With p = 0.3 all n runs escape in 0.7ⁿ of sweeps, a third of them for three runs.

    No test of means can tell such a method from one that is better. It takes ten runs, as
    docs/read-the-table.md says; any of six is then called different in 5 to 7 % of sweeps.
    """
    of_each, of_any = shares(world, 3, 500)
    assert of_each > 0.08
    assert of_any > 0.08
    of_each, of_any = shares(world, 10, 800)
    assert of_each <= 0.06
    assert of_any <= 0.075


@pytest.mark.parametrize("runs", [8, 12])
def test_collapsed_runs_are_found_where_means_are_equal(runs: int) -> None:
    """Fisher's test of how many collapsed: vanilla 60 %, TRB none."""
    generator = np.random.default_rng(runs)
    found = [
        significance.collapse_p((0, runs), (int(fallen), runs)) < 0.05
        for fallen in generator.binomial(runs, 0.6, 400)
    ]
    assert np.mean(found) > (0.5 if runs == 8 else 0.9)


# --- the correction for several methods against independent ones ---


@pytest.mark.parametrize("counts", [(3, 3, 3, 3, 3, 3, 3), (5, 3, 3, 4, 2, 6, 3), (2, 2, 2)])
def test_adjusted_differences_are_those_of_dunnetts_test(counts: tuple[int, ...]) -> None:
    """With one variance and its degrees of freedom for all, against scipy's Dunnett test."""
    generator = np.random.default_rng(sum(counts))
    control, *others = [generator.normal(size=count) for count in counts]
    freedom = sum(counts) - len(counts)
    squares = sum(((each - each.mean()) ** 2).sum() for each in (control, *others)) / freedom
    distributions = []
    for each in others:
        parts = squares / len(each), squares / len(control)
        distributions.append(TDistribution(sqrt(sum(parts)), freedom, parts[1] / sum(parts)))
    found = significance.adjusted(
        [float(each.mean() - control.mean()) for each in others], distributions
    )
    expected = stats.dunnett(*others, control=control, rng=np.random.default_rng(1))
    limits = expected.confidence_interval(0.95)
    # scipy integrates by quasi-Monte Carlo.
    assert found.p_values == pytest.approx(expected.pvalue, abs=5e-4)
    assert found.reaches == pytest.approx((limits.high - limits.low) / 2, rel=2e-3)


@pytest.mark.parametrize(
    ("methods", "freedom", "bound"), [(2, 10, 2.57), (6, 20, 2.80), (6, 60, 2.64)]
)
def test_the_bound_is_that_of_published_tables(methods: int, freedom: int, bound: float) -> None:
    """Two-sided at 5 %, equal numbers of runs (Dunnett 1964, "New tables for multiple
    comparisons").
    """
    alike = [TDistribution(1.0, freedom, 0.5)] * methods
    assert significance.adjusted([0.0] * methods, alike).reaches[0] == pytest.approx(
        bound, abs=0.006
    )


def test_unlike_variances_are_those_of_a_multivariate_t_distribution() -> None:
    """Against draws of it, with the correlations that the control's mean makes."""
    spreads = {"c": RunSpread(4.0, 4), "a": RunSpread(1.0, 3), "b": RunSpread(6.0, 5)}
    distributions = []
    for name in "ab":
        found = significance.of_difference(spreads[name], spreads["c"])
        assert found is not None
        distributions.append(found)
    adjusted = significance.adjusted([5.0, -9.0], distributions)
    generator = np.random.default_rng(1)
    means = {
        name: generator.normal(0, sqrt(spread.squared_error), 400_000)
        for name, spread in spreads.items()
    }
    z = np.stack(
        [
            np.abs(means[name] - means["c"]) / own.error
            for name, own in zip("ab", distributions, strict=True)
        ]
    ).max(axis=0)
    for value, own, p in zip((5.0, 9.0), distributions, adjusted.p_values, strict=True):
        scale = np.sqrt(generator.chisquare(own.freedom, len(z)) / own.freedom)
        assert p == pytest.approx(np.mean(z / scale >= value / own.error), abs=0.004)


def test_a_single_difference_needs_no_correction() -> None:
    own = TDistribution(1.5, 7.3, 0.4)
    found = significance.adjusted([2.0], [own])
    assert (found.p_values, found.reaches) == ([own.p_value(2.0)], [own.reach()])


def test_corrected_p_values_go_with_their_intervals() -> None:
    """A method is shown to differ exactly where its corrected interval leaves out zero."""
    generator = np.random.default_rng(2)
    for _ in range(200):
        scores = {method: generator.normal(14, 1, 3) for method in METHODS}
        scores[TRB] += 4
        scored = {method: Runs(method, percent) for method, percent in scores.items()}
        drawn = {method: {"avg": np.zeros(2)} for method in scored}
        gaps = to_reference(scored, drawn, dict.fromkeys(scored, 1))
        alone = []
        for method, columns in gaps.items():
            gap = columns["avg"]
            within = gap.estimate.interval
            assert gap.shown == (within.low > 0 or within.high < 0)
            expected: Any = stats.ttest_ind(scores[method], scores[VANILLA], equal_var=False)
            alone.append(expected.pvalue)
            assert gap.p_value is not None
            assert expected.pvalue <= gap.p_value <= min(1.0, 6 * expected.pvalue) + 1e-4
            assert gap.corrected_for == 6
        assert [columns["avg"].holm for columns in gaps.values()] == pytest.approx(
            significance.holm(alone)
        )


# --- until decided ---


def test_a_look_and_the_table_have_the_same_reach() -> None:
    """Three close runs of each method whose responses alone scatter by 2.5 points: not decided."""
    close = [Fraction(50), Fraction(501, 10), Fraction(502, 10)]
    of_runs = {VANILLA: close, TRB: close[::-1]}
    assert open_methods(of_runs, 2.0) == []
    assert open_methods(of_runs, 2.0, dict.fromkeys(of_runs, 2.5**2)) == [TRB]


def test_what_cannot_be_tested_yet_is_not_decided() -> None:
    """No two runs of either method differ: 3 points apart is open, level is not."""
    of_runs = {
        VANILLA: [Fraction(50)] * 2,
        "skd": [Fraction(53)] * 2,
        "veto": [Fraction(50)] * 2,
        TRB: [Fraction(50), Fraction(58)],
    }
    assert open_methods(of_runs, 1.0) == ["skd", TRB]
