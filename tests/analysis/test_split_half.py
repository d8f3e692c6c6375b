"""Split-half selection: what it gives by definition, and that it takes away the luck of the best of
many.
"""

from __future__ import annotations

import numpy as np
import pytest

from analysis.facts.intervals import split_half_scores


def test_one_candidate_has_its_own_score() -> None:
    assert split_half_scores({"a": np.array([[0.0, 1.0, 0.5]]), "b": np.array([[0.25]])}) == {
        "a": 0.5,
        "b": 0.25,
    }


def test_a_candidate_that_is_best_everywhere_has_its_own_score() -> None:
    scores = np.array([[0.1] * 40, [0.7] * 40, [0.5] * 40])
    assert split_half_scores({"a": scores}) == {"a": pytest.approx(0.7)}


def test_two_problems_make_each_half_one_problem() -> None:
    """Half of the time each candidate is chosen for the problem that it has right, and scored on
    the other.
    """
    assert split_half_scores({"a": np.array([[1.0, 0.0], [0.0, 0.8]])}) == {"a": pytest.approx(0.0)}


def test_the_choice_is_by_the_mean_over_benchmarks() -> None:
    wide, narrow = np.array([[0.6] * 10, [0.5] * 10]), np.array([[0.1] * 4, [0.4] * 4])
    assert split_half_scores({"wide": wide, "narrow": narrow}) == {
        "wide": pytest.approx(0.5),
        "narrow": pytest.approx(0.4),
    }


def test_a_tie_goes_to_the_first_however_its_sum_is_rounded() -> None:
    """0.3 + 0.2 + 0.1 is less than 0.1 + 0.2 + 0.3 in binary."""
    a, b, c = (
        np.array([[first] * 8, [second] * 8])
        for first, second in ((0.3, 0.1), (0.2, 0.2), (0.1, 0.3))
    )
    assert split_half_scores({"a": a, "b": b, "c": c}) == {
        "a": pytest.approx(0.3),
        "b": pytest.approx(0.2),
        "c": pytest.approx(0.1),
    }


def test_a_single_problem_cannot_be_split() -> None:
    assert split_half_scores({"a": np.zeros((2, 10)), "b": np.zeros((2, 1))}) is None


def test_it_is_deterministic() -> None:
    scores = np.random.default_rng(0).random((5, 31))
    assert split_half_scores({"a": scores}) == split_half_scores({"a": scores.copy()})


def test_the_luck_of_the_best_of_many_is_gone() -> None:
    """Sixty equal checkpoints: the best looks better than it is, on the other half it does not."""
    generator = np.random.default_rng(1)
    selected, honest = [], []
    for _ in range(40):
        rates = generator.uniform(0.2, 0.6, 100)
        scores = (
            generator.binomial(4, rates, (60, 100)) / 4 - rates + 0.4
        )  # truth: 0.4 for every candidate
        selected.append(scores.mean(axis=1).max())
        found = split_half_scores({"a": scores}, splits=50)
        assert found is not None
        honest.append(found["a"])
    spread = np.std(honest) / 40**0.5
    assert np.mean(selected) > 0.44
    assert abs(np.mean(honest) - 0.4) < max(0.006, 4 * spread)


def test_a_real_difference_between_checkpoints_stays() -> None:
    generator = np.random.default_rng(2)
    rates = np.linspace(0.2, 0.6, 20)[:, None] + generator.uniform(-0.1, 0.1, 200)
    found = split_half_scores({"a": generator.binomial(16, rates) / 16})
    assert found is not None
    assert found["a"] == pytest.approx(0.6, abs=0.04)
