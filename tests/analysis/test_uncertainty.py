"""Bootstrap intervals over problems against analytic standard errors and simulated truths."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis.facts.intervals import Interval, average, interval, resample

Array = NDArray[np.float64]


def pass_rates(generator: np.random.Generator, problems: int) -> Array:
    """Problems of a benchmark: some never solved, some always, most between; the mean rate is 0.4."""
    return generator.beta(0.6, 0.9, problems)


def scores(generator: np.random.Generator, rates: Array, n: int) -> Array:
    return generator.binomial(n, rates) / n


def standard_error(samples: Array) -> float:
    """s/√P of the problems' scores."""
    return float(samples.std(ddof=1) / np.sqrt(samples.size))


def correlation(one: Array, other: Array) -> float:
    return float(((one - one.mean()) * (other - other.mean())).mean() / (one.std() * other.std()))


# --- intervals ---


@pytest.mark.parametrize(("problems", "n"), [(500, 64), (200, 4), (100, 1), (30, 512), (5, 2)])
def test_the_spread_of_replicates_is_the_clustered_standard_error(problems: int, n: int) -> None:
    generator = np.random.default_rng(problems)
    observed = scores(generator, pass_rates(generator, problems), n)
    replicates = resample({"a": observed}, "math500", 20000)["a"]
    assert replicates.std() == pytest.approx(standard_error(observed), rel=0.03)
    assert replicates.mean() == pytest.approx(
        observed.mean(), abs=4 * standard_error(observed) / 20000**0.5
    )


def test_one_sample_for_each_problem_is_the_binomial_interval() -> None:
    observed = np.repeat([1.0, 0.0], [70, 130])
    found = interval(0.35, resample({"a": observed}, "gsm8k", 20000)["a"])
    reach = 1.96 * (0.35 * 0.65 / 199) ** 0.5
    assert (found.low, found.high) == pytest.approx((0.35 - reach, 0.35 + reach), abs=0.006)


@pytest.mark.parametrize(("problems", "n"), [(200, 4), (40, 16), (60, 1)])
def test_the_interval_covers_the_true_mean(problems: int, n: int) -> None:
    """Benchmarks drawn from a population of problems with mean rate 0.4."""
    generator = np.random.default_rng(7)
    covered = []
    for trial in range(400):
        observed = scores(generator, pass_rates(generator, problems), n)
        found = interval(observed.mean(), resample({"a": observed}, str(trial), 400)["a"])
        covered.append(found.low <= 0.4 <= found.high)
    assert 0.92 <= np.mean(covered) <= 0.985


def test_redrawing_the_samples_too_would_count_their_noise_twice() -> None:
    generator = np.random.default_rng(3)
    rates = np.full(400, 0.5)
    means = [scores(generator, rates, 4).mean() for _ in range(4000)]
    observed = scores(generator, rates, 4)
    replicates = resample({"a": observed}, "k", 4000)["a"]
    twice = generator.binomial(4, generator.choice(observed, (4000, 400))).mean(axis=1) / 4
    assert replicates.std() == pytest.approx(np.std(means), rel=0.1)
    assert twice.std() > 1.25 * np.std(means)


def test_the_average_has_independent_benchmarks() -> None:
    generator = np.random.default_rng(11)
    columns = [scores(generator, pass_rates(generator, problems), 8) for problems in (300, 40, 30)]
    drawn = [
        resample({"a": column}, f"benchmark {i}", 20000)["a"] for i, column in enumerate(columns)
    ]
    expected = sum(standard_error(column) ** 2 for column in columns) ** 0.5 / 3
    assert average(drawn).std() == pytest.approx(expected, rel=0.03)
    assert abs(correlation(*drawn[:2])) < 0.03


# --- problems that all score the same ---


def test_all_right_gives_the_rule_of_three() -> None:
    found = interval(1.0, resample({"a": np.ones(200)}, "k", 20000)["a"])
    assert found.high == 1.0
    assert found.low == pytest.approx(0.05 ** (1 / 200), abs=0.001)
    mirrored = interval(0.0, resample({"a": np.zeros(200)}, "k", 20000)["a"])
    assert (mirrored.low, mirrored.high) == pytest.approx((0.0, 1 - found.low), abs=0.001)


@pytest.mark.parametrize("problems", [1, 3])
def test_few_equal_problems_say_little(problems: int) -> None:
    found = interval(0.5, resample({"a": np.full(problems, 0.5)}, "k")["a"])
    assert found.low < 0.2
    assert found.high > 0.8


def test_an_interval_holds_the_value_itself() -> None:
    assert interval(0.0, np.array([0.1, 0.2, 0.3]), confidence=1) == Interval(0.0, 0.3)
    assert interval(0.5, np.array([0.1, 0.2, 0.3]), confidence=1) == Interval(0.1, 0.5)


# --- pairs ---


def test_pairs_on_the_same_problems_are_compared_more_sharply() -> None:
    generator = np.random.default_rng(13)
    rates = pass_rates(generator, 300)
    one, other = (scores(generator, rates, 64) for _ in range(2))
    drawn = resample({"one": one, "other": other}, "k", 20000)
    assert (drawn["one"] - drawn["other"]).std() == pytest.approx(
        standard_error(one - other), rel=0.03
    )
    assert standard_error(one - other) < standard_error(one) / 3


def test_the_draws_do_not_depend_on_what_else_is_compared() -> None:
    generator = np.random.default_rng(17)
    one, other, third = (generator.random(20) for _ in range(3))
    alone = resample({"one": one}, "k", 50)["one"]
    assert np.array_equal(
        alone, resample({"third": third, "one": one, "other": other}, "k", 50)["one"]
    )
    assert not np.array_equal(alone, resample({"one": one}, "another benchmark", 50)["one"])
