"""How often equal methods are called different, and unequal ones are found, from counts to the
judgement.
"""

from __future__ import annotations

import itertools
import zlib
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from analysis.facts.assess import leave_one_seed_out
from analysis.facts.candidates import Candidate
from orchestrator.selection import significance
from orchestrator.selection.confirmation import LOOKS
from orchestrator.selection.scores import Tally
from tests.judge_world import METHODS, TRB, Judged, Shape, World, decided, judged

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
    """Runs half a point apart settle ± 2 points at once, runs four points apart take all rounds."""
    generator = np.random.default_rng(5)
    least, most = 3 * len(METHODS), 3 * LOOKS * len(METHODS)
    assert (
        np.mean([decided(generator, World(between=0.5), 2.0)[1] for _ in range(30)]) < 1.5 * least
    )
    assert np.mean([decided(generator, World(between=4.0), 2.0)[1] for _ in range(30)]) > 0.9 * most
    ahead = [decided(generator, World(between=1.0, ahead=3.0), 0.5)[0][TRB] for _ in range(60)]
    assert np.mean(ahead) > 0.95


def test_a_method_that_is_ahead_is_found() -> None:
    """Six points ahead, runs a point apart: three confirming seeds show it nearly always."""
    found = simulated(replace(World("paper-small", seeds=2), ahead=6.0), 60)
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


# --- Dunnett's test and Holm's procedure against independent ones ---


@pytest.mark.parametrize("counts", [(3, 3, 3, 3, 3, 3, 3), (5, 3, 3, 4, 2, 6, 3), (2, 2, 2)])
def test_adjusted_differences_are_those_of_dunnetts_test(counts: tuple[int, ...]) -> None:
    generator = np.random.default_rng(sum(counts))
    control, *others = [generator.normal(size=count) for count in counts]
    spread = significance.pool([each.tolist() for each in (control, *others)])
    assert spread is not None
    found = significance.adjusted(
        [float(each.mean() - control.mean()) for each in others], spread, counts[1:], counts[0]
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
    spread = significance.SeedSpread(1.0, freedom)
    found = significance.adjusted([0.0] * methods, spread, [4] * methods, 4)
    assert found.reaches[0] / np.sqrt(0.5) == pytest.approx(bound, abs=0.006)


def test_a_single_difference_needs_no_correction() -> None:
    spread = significance.SeedSpread(1.5, 7)
    found = significance.adjusted([2.0], spread, [3], 4)
    assert found.p_values == [significance.p_value(2.0, spread, 3, 4)]
    assert found.reaches == [significance.reach(spread, 3, 4)]


def test_corrected_p_values_go_with_their_intervals() -> None:
    spread = significance.SeedSpread(1.0, 14)
    gaps = [0.0, 0.5, 1.5, 2.2, 2.4, 5.0]
    found = significance.adjusted(gaps, spread, [3] * 6, 3)
    assert [p < 0.05 for p in found.p_values] == [
        gap > reach for gap, reach in zip(gaps, found.reaches, strict=True)
    ]
    assert all(
        p >= significance.p_value(gap, spread, 3, 3)
        for p, gap in zip(found.p_values, gaps, strict=True)
    )


def test_holm_steps_down() -> None:
    assert significance.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert significance.holm([0.6, 0.7]) == [1.0, 1.0]
    assert significance.holm([]) == []
