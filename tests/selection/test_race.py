"""Races by simulation: the same pick as the full protocol, for a fraction of the generations."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import numpy as np
import pytest

from orchestrator.experiment import evaluation_protocol
from orchestrator.selection import race
from tests.race_world import PAPER, WORLDS, Suite, World, play, race_of, rates, samples

FULL = [suite.n for suite in PAPER]


# --- rungs ---


def test_rungs_grow_to_the_full_number_of_samples() -> None:
    sizes = evaluation_protocol.rung_sizes(FULL)
    assert sizes[0] == (2, 2, 16, 16, 16)
    assert sizes[-2:] == [(48, 48, 384, 384, 384), (64, 64, 512, 512, 512)]
    assert all(low < high for a, b in pairwise(sizes) for low, high in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("full", "expected"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 3, 4]), (5, [1, 2, 3, 4, 5])]
)
def test_few_samples_make_few_rungs(full: int, expected: list[int]) -> None:
    assert evaluation_protocol.rung_sizes([full]) == [(n,) for n in expected]


def test_a_rung_may_repeat_a_benchmark_but_not_all_of_them() -> None:
    sizes = evaluation_protocol.rung_sizes([2, 64])
    assert sizes[:2] == [(1, 2), (1, 4)]
    assert len(set(sizes)) == len(sizes)


# --- one rung ---


def counts(correct: list[list[int]], n: int, full: int) -> race.Counts:
    array = np.array(correct)
    return race.Counts(array, np.full_like(array, n), full)


def alive(correct: list[list[int]], n: int, full: int, error: float = 0.05) -> list[bool]:
    return race.Race(error, 5).survivors([counts(correct, n, full)]).tolist()


def test_the_clearly_worse_leave_and_the_leader_stays() -> None:
    assert alive([[30] * 50, [30] * 45 + [28] * 5, [2] * 50], 32, 512) == [True, True, False]


def test_equals_stay() -> None:
    assert alive([[1] * 20, [1] * 20], 2, 64) == [True, True]


def test_a_sole_candidate_stays() -> None:
    assert alive([[0] * 5], 1, 4) == [True]


def test_all_right_or_all_wrong_in_few_samples_is_not_certain() -> None:
    """Two samples of one problem say little, whatever they were."""
    assert alive([[2], [0]], 2, 512) == [True, True]
    assert alive([[0, 0, 0], [0, 0, 0], [1, 0, 0]], 1, 512) == [True, True, True]


def test_what_is_complete_is_compared_exactly() -> None:
    assert alive([[300, 10], [300, 9], [299, 11]], 512, 512) == [True, False, True]


def test_only_what_has_not_been_sampled_is_uncertain() -> None:
    """The same counts decide when they are half of the protocol's samples and do not when they are
    a trifle.
    """
    close = [[40] * 30, [38] * 30]
    assert alive(close, 64, 80) == [True, False]
    assert alive(close, 64, 100_000) == [True, True]


def test_a_stricter_bound_drops_less() -> None:
    rows = [[40] * 30, [35] * 30]
    assert alive(rows, 64, 512, error=0.2) == [True, False]
    assert alive(rows, 64, 512, error=1e-9) == [True, True]


def test_benchmarks_weigh_the_same() -> None:
    """100 problems against 10: the small benchmark outweighs what the large one says."""
    large, small = [[40] * 100, [41] * 100], [[60] * 10, [20] * 10]
    found = race.Race(0.05, 5).survivors([counts(large, 64, 512), counts(small, 64, 512)])
    assert found.tolist() == [True, False]


def test_candidates_may_have_different_numbers_of_samples() -> None:
    mixed = race.Counts(
        np.array([[50] * 40, [4] * 40, [1] * 40]), np.array([[64] * 40, [8] * 40, [8] * 40]), 64
    )
    assert race.Race(0.05, 5).survivors([mixed]).tolist() == [True, False, False]


def test_the_predicted_variance_is_that_of_what_comes() -> None:
    """Standardised, the difference between the full and the first scores has a variance of about
    one, or a bit less.
    """
    rng, suite = np.random.default_rng(0), Suite(100, 64, 0.5)
    rate = np.repeat(rates(rng, (suite,), World(0, 0), 1, 1)[0], 400, axis=0)
    [(first, full)] = samples(rng, [rate], [(2,), (64,)])
    predicted = race._variance(race.Counts(first, np.full_like(first, 2), 64))
    standard = (first.mean(axis=1) / 2 - full.mean(axis=1) / 64) / np.sqrt(predicted)
    assert 0.75 < standard.std() < 1.05


# --- an indifference zone ---


def test_the_chances_of_a_loss_are_those_of_samples() -> None:
    """Against a million draws of four normal variables."""
    means, deviations = np.array([0.5, 0.4, 0.38, 0.1]), np.array([0.1, 0.2, 0.05, 0.3])
    drawn = np.random.default_rng(0).normal(means, deviations, (1_000_000, 4))
    for zone in (0.0, 0.1):
        expected = []
        for kept in range(1, 4):
            lost = drawn[:, kept:].max(axis=1) > drawn[:, :kept].max(axis=1) + zone
            expected.append(lost.mean())
        found = race._chances_of_loss(means, deviations, zone)
        assert found == pytest.approx([*expected, 0], abs=2e-3)


def test_full_means_are_expected_nearer_to_each_other_than_present_ones() -> None:
    """Of many candidates that differ as much as their noise, half of each gap remains."""
    rng = np.random.default_rng(1)
    full = rng.normal(0.5, 0.02, 2000)
    present, variances = full + rng.normal(0, 0.02, 2000), np.full(2000, 0.02**2)
    expected, deviations = race._full_means(present, variances, present, variances)
    assert np.polyfit(present, expected, 1)[0] == pytest.approx(0.5, abs=0.05)
    assert (full - expected).std() == pytest.approx(deviations.mean(), rel=0.05)


def test_candidates_that_do_not_differ_end_a_race_at_once() -> None:
    rows = [[1, 0] * 200] * 50
    found = race.Race(0.05, 5, indifference=0.01).survivors([counts(rows, 1, 64)])
    assert found.sum() == 1


def test_a_wider_zone_ends_earlier_and_what_a_rung_leaves_is_passed_on() -> None:
    rows = [[40] * 30, [39] * 30, [30] * 30]
    close = [counts(rows, 48, 512)]
    assert race.Race(0.05, 5, indifference=0.001).survivors(close).tolist() == [True, True, False]
    assert race.Race(0.05, 5, indifference=0.2).survivors(close).tolist() == [True, False, False]
    patient = race.Race(0.05, 5, indifference=0.001)
    for _ in range(3):
        patient.survivors([counts(rows[:2], 48, 512)])
    assert patient._unused == pytest.approx(0.05 * 3 / 4)


@pytest.mark.parametrize(("runs", "most"), [(1, 0.13), (5, 0.06)])
def test_a_zone_saves_most_samples_and_loses_little(runs: int, most: float) -> None:
    """Families of the paper's size; `benchmarks/judge.py` has the figures of more of them."""
    found = []
    for world in WORLDS.values():
        found += [race_of(seed, PAPER, world, runs, 20, zone=0.003) for seed in range(8)]
    assert fmean(outcome.share for outcome in found) < most
    assert fmean(outcome.regret <= 0.003 for outcome in found) >= 0.9


@pytest.mark.parametrize("between", [World(0, 0), World(0.4, 0.1)])
def test_the_zone_keeps_its_error_where_it_is_hardest(between: World) -> None:
    suite = Suite(30, 16, 0.2)
    found = [race_of(seed, (suite,), between, 3, 5, error=0.05, zone=0.03) for seed in range(250)]
    assert fmean(outcome.loss > 0.03 for outcome in found) <= 0.05


# --- whole races ---


@pytest.mark.parametrize("name", WORLDS)
def test_a_family_of_the_papers_size(name: str) -> None:
    """15 runs of 20 checkpoints on setup A: at most a third of the generations, and the same pick."""
    found = [race_of(seed, PAPER, WORLDS[name], 15, 20) for seed in range(2)]
    assert all(outcome.share < 1 / 3 for outcome in found)
    assert all(outcome.same for outcome in found)
    assert all(outcome.alive[0] == 300 for outcome in found)


@pytest.mark.parametrize("runs", [1, 5])
def test_small_families_save_too(runs: int) -> None:
    found = [race_of(seed, PAPER, WORLDS["middle"], runs, 20) for seed in range(4)]
    assert fmean(outcome.share for outcome in found) < (0.4 if runs == 1 else 0.25)
    assert all(outcome.loss < 0.001 for outcome in found)


@pytest.mark.parametrize("between", [World(0, 0), World(0.1, 0.05), World(0.4, 0.1)])
@pytest.mark.parametrize("suite", [Suite(30, 16, 0.2), Suite(10, 64, 0.5)])
def test_the_error_is_bounded_where_it_is_hardest_to_keep(suite: Suite, between: World) -> None:
    """Few problems; runs that do not differ at all, so that the pick is nothing but noise, and runs
    that do.
    """
    found = [race_of(seed, (suite,), between, 3, 5, error=0.05) for seed in range(250)]
    assert fmean(not outcome.same for outcome in found) <= 0.05
    assert fmean(outcome.share for outcome in found) < 0.7


def test_candidates_far_behind_cost_the_others_nothing() -> None:
    """Two that are close are told apart as early among a hundred hopeless ones as alone."""
    close = [[40] * 30, [39] * 30]
    assert alive(close, 48, 64) == [True, False]
    assert alive(close + [[1] * 30] * 100, 48, 64) == [True] + [False] * 101


def test_with_one_sample_there_is_nothing_to_race_for() -> None:
    once = (Suite(20, 1, 0.5),)
    outcome = race_of(0, once, World(0.2, 0.1), 2, 4)
    assert outcome.same
    assert outcome.share == 1


def test_counts_that_are_recorded_decide_alike_again() -> None:
    rng, sizes = np.random.default_rng(3), evaluation_protocol.rung_sizes(FULL)
    correct = samples(rng, rates(rng, PAPER, WORLDS["near"], 2, 5), sizes)
    assert play(PAPER, correct, sizes, 0.05) == play(PAPER, correct, sizes, 0.05)
