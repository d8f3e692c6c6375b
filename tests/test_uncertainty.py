"""Bootstrap intervals and paired p-values against analytic standard errors and simulated truths."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis.uncertainty import Interval, average, interval, p_value, resample

Array = NDArray[np.float64]


def pass_rates(generator: np.random.Generator, problems: int) -> Array:
    """Problems of a benchmark: some never solved, some always, most between; the mean rate is 0.4."""
    return generator.beta(0.6, 0.9, problems)


def scores(generator: np.random.Generator, rates: Array, n: int, seeds: int = 1) -> Array:
    return generator.binomial(n, rates, (seeds, len(rates))) / n


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
    assert replicates.mean() == pytest.approx(observed.mean(), abs=4 * standard_error(observed) / 20000**0.5)


def test_one_sample_for_each_problem_is_the_binomial_interval() -> None:
    observed = np.repeat([1.0, 0.0], [70, 130])[None]
    found = interval(0.35, resample({"a": observed}, "gsm8k", 20000)["a"])
    reach = 1.96 * (0.35 * 0.65 / 199) ** 0.5
    assert (found.low, found.high) == pytest.approx((0.35 - reach, 0.35 + reach), abs=0.006)


@pytest.mark.parametrize(("problems", "n", "seeds"), [(200, 4, 1), (40, 16, 1), (60, 1, 1), (60, 4, 5)])
def test_the_interval_covers_the_true_mean(problems: int, n: int, seeds: int) -> None:
    """Benchmarks drawn from a population of problems with mean rate 0.4; seeds shift all rates of a run alike."""
    generator = np.random.default_rng(7)
    covered = []
    for trial in range(400):
        rates = pass_rates(generator, problems)
        shifted = np.clip(rates + generator.normal(0, 0.02 * (seeds > 1), (seeds, 1)), 0, 1)
        observed = generator.binomial(n, shifted) / n
        found = interval(observed.mean(), resample({"a": observed}, str(trial), 400)["a"])
        covered.append(found.low <= 0.4 <= found.high)
    assert 0.92 <= np.mean(covered) <= 0.985


def test_redrawing_the_samples_too_would_count_their_noise_twice() -> None:
    generator = np.random.default_rng(3)
    rates = np.full(400, 0.5)
    means = [scores(generator, rates, 4).mean() for _ in range(4000)]
    observed = scores(generator, rates, 4)
    replicates = resample({"a": observed}, "k", 4000)["a"]
    twice = generator.binomial(4, generator.choice(observed[0], (4000, 400))).mean(axis=1) / 4
    assert replicates.std() == pytest.approx(np.std(means), rel=0.1)
    assert twice.std() > 1.25 * np.std(means)


def test_seeds_widen_the_interval_by_their_spread() -> None:
    generator = np.random.default_rng(5)
    rates = generator.uniform(0.3, 0.7, 400)
    shifts = np.array([-0.1, -0.05, 0.0, 0.05, 0.1])
    observed = np.stack([scores(generator, rates + shift, 64)[0] for shift in shifts])
    together = resample({"a": observed}, "k", 20000)["a"].std()
    problems = standard_error(observed.mean(axis=0))
    seeds = observed.mean(axis=1).std(ddof=1) / 5**0.5
    assert together == pytest.approx((problems**2 + seeds**2) ** 0.5, rel=0.05)


def test_the_average_has_independent_benchmarks() -> None:
    generator = np.random.default_rng(11)
    columns = [scores(generator, pass_rates(generator, problems), 8) for problems in (300, 40, 30)]
    drawn = [resample({"a": column}, f"benchmark {i}", 20000)["a"] for i, column in enumerate(columns)]
    expected = sum(standard_error(column) ** 2 for column in columns) ** 0.5 / 3
    assert average(drawn).std() == pytest.approx(expected, rel=0.03)
    assert abs(correlation(*drawn[:2])) < 0.03


def test_a_seed_counts_on_all_benchmarks_at_once() -> None:
    by_seed = np.array([[0.2], [0.6], [0.9]])
    one, two = (by_seed + np.linspace(-0.001, 0.001, problems) for problems in (50, 70))
    drawn = [resample({"a": column}, key, 2000)["a"] for key, column in (("x", one), ("y", two))]
    assert correlation(*drawn) > 0.99


# --- problems that all score the same ---


def test_all_right_gives_the_rule_of_three() -> None:
    found = interval(1.0, resample({"a": np.ones((1, 200))}, "k", 20000)["a"])
    assert found.high == 1.0
    assert found.low == pytest.approx(0.05 ** (1 / 200), abs=0.001)
    mirrored = interval(0.0, resample({"a": np.zeros((1, 200))}, "k", 20000)["a"])
    assert (mirrored.low, mirrored.high) == pytest.approx((0.0, 1 - found.low), abs=0.001)


@pytest.mark.parametrize("problems", [1, 3])
def test_few_equal_problems_say_little(problems: int) -> None:
    found = interval(0.5, resample({"a": np.full((1, problems), 0.5)}, "k")["a"])
    assert found.low < 0.2
    assert found.high > 0.8


def test_one_problem_with_several_seeds_has_an_interval_in_bounds() -> None:
    found = interval(0.5, resample({"a": np.array([[0.0], [1.0]])}, "k")["a"])
    assert 0 <= found.low < 0.1
    assert 0.9 < found.high <= 1


def test_an_interval_holds_the_value_itself() -> None:
    assert interval(0.0, np.array([0.1, 0.2, 0.3]), confidence=1) == Interval(0.0, 0.3)
    assert interval(0.5, np.array([0.1, 0.2, 0.3]), confidence=1) == Interval(0.1, 0.5)


# --- pairs ---


def test_pairs_on_the_same_problems_are_compared_more_sharply() -> None:
    generator = np.random.default_rng(13)
    rates = pass_rates(generator, 300)
    one, other = (scores(generator, rates, 64) for _ in range(2))
    drawn = resample({"one": one, "other": other}, "k", 20000)
    assert (drawn["one"] - drawn["other"]).std() == pytest.approx(standard_error(one - other), rel=0.03)
    assert standard_error(one - other) < standard_error(one) / 3


def test_the_draws_do_not_depend_on_what_else_is_compared() -> None:
    generator = np.random.default_rng(17)
    one, other, third = (generator.random((1, 20)) for _ in range(3))
    alone = resample({"one": one}, "k", 50)["one"]
    assert np.array_equal(alone, resample({"third": third, "one": one, "other": other}, "k", 50)["one"])
    assert not np.array_equal(alone, resample({"one": one}, "another benchmark", 50)["one"])


@pytest.mark.parametrize(("gain", "low", "high"), [(0.0, 0.02, 0.09), (0.05, 0.6, 1.0)])
def test_how_often_a_difference_is_called_one(gain: float, low: float, high: float) -> None:
    """Shares of p < 0.05 over repeated experiments: five per cent where there is none, most where there is."""
    generator = np.random.default_rng(19)
    small = []
    for trial in range(300):
        rates = generator.uniform(0.2, 0.8, 120)
        pair = {"one": scores(generator, rates + gain, 8), "other": scores(generator, rates, 8)}
        drawn = resample(pair, str(trial), 400)
        small.append(p_value(drawn["one"] - drawn["other"]) < 0.05)
    assert low <= np.mean(small) <= high


def test_the_p_value_goes_with_the_interval() -> None:
    generator = np.random.default_rng(23)
    for centre in np.linspace(-0.08, 0.08, 33):
        drawn = generator.normal(centre, 0.03, 3999)
        found = interval(centre, drawn)
        assert (p_value(drawn) < 0.05) == (found.low > 0 or found.high < 0)


@pytest.mark.parametrize(
    ("differences", "expected"), [([1.0] * 99, 2 / 100), ([-1.0] * 99, 2 / 100), ([0.0] * 99, 1.0), ([1, -1, 1], 1.0)]
)
def test_the_p_value_by_its_definition(differences: list[float], expected: float) -> None:
    assert p_value(np.array(differences)) == expected
