"""t intervals and tests over training runs against scipy, by hand, and in simulated sweeps."""

from __future__ import annotations

import itertools
import re
import statistics
from fractions import Fraction
from math import sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from orchestrator.selection import significance
from orchestrator.selection.significance import RunSpread, TDistribution
from tests.sweeps import ROOT

Array = NDArray[np.float64]
ONE, OTHER = [50.0, 52.0, 55.0], [48.0, 47.0, 51.0, 50.0]


def compared(one: list[float], other: list[float]) -> TDistribution:
    found = significance.of_difference(significance.spread_of(one), significance.spread_of(other))
    assert found is not None
    return found


def test_the_spread_is_that_of_one_methods_runs() -> None:
    found = significance.spread_of([10.0, 10.0, 13.0])
    assert found is not None
    assert (found.deviation, found.runs) == (pytest.approx(sqrt(3)), 3)


def test_one_run_has_no_spread() -> None:
    assert significance.spread_of([5.0]) is None
    assert significance.of_mean(None) is None
    assert significance.of_difference(None, RunSpread(1.0, 3)) is None


@pytest.mark.parametrize("scores", [[5.0, 5.0], [Fraction(1, 3)] * 3, [1 / 3, 1 / 3, 1 / 3]])
def test_equal_runs_make_no_difference_certain(scores: list[float]) -> None:
    spread = significance.spread_of(scores)
    assert spread == RunSpread(0.0, len(scores), differ=False)
    assert significance.of_mean(spread) is None
    assert significance.of_difference(spread, spread) is None


def test_equal_runs_beside_others_take_the_spread_of_these() -> None:
    """Welch's error and degrees of freedom are then those of the other method alone."""
    found = compared([5.0, 5.0, 5.0], OTHER)
    assert found.error == pytest.approx(stats.sem(OTHER))
    assert found.freedom == pytest.approx(len(OTHER) - 1)


def test_close_runs_vary_as_much_as_sampling_lets_them() -> None:
    """Two runs at 50.0 and 50.1 are luck where 400 responses alone scatter by 2.5 points."""
    found = significance.spread_of([50.0, 50.1], sampling=2.5**2)
    assert found == RunSpread(2.5, 2)
    assert significance.spread_of([50.0, 50.0], sampling=4.0) == RunSpread(2.0, 2, differ=False)
    wide = significance.spread_of([40.0, 60.0], sampling=2.5**2)
    assert wide is not None
    assert wide.deviation == pytest.approx(np.std([40, 60], ddof=1))


def test_two_methods_are_compared_as_by_welchs_test() -> None:
    expected: Any = stats.ttest_ind(ONE, OTHER, equal_var=False)
    difference = float(np.mean(ONE) - np.mean(OTHER))
    found = compared(ONE, OTHER)
    assert found.freedom == pytest.approx(expected.df)
    assert found.p_value(difference) == pytest.approx(expected.pvalue)
    limits = expected.confidence_interval(0.95)
    assert difference - found.reach() == pytest.approx(limits.low)
    assert difference + found.reach() == pytest.approx(limits.high)


def test_the_mean_of_one_method_has_students_interval() -> None:
    scores = [50.0, 52.0, 55.0, 51.0]
    found = significance.of_mean(significance.spread_of(scores))
    assert found is not None
    low, high = stats.t.interval(0.95, 3, np.mean(scores), stats.sem(scores))
    assert 2 * found.reach() == pytest.approx(high - low)


@pytest.mark.parametrize("difference", [0.0, 0.3, 2.0, 4.4, 40.0])
def test_p_goes_with_the_interval(difference: float) -> None:
    found = TDistribution(1.6, 5.5)
    for value in (difference, -difference, Fraction(difference)):
        for level in (0.05, 0.0158, 0.05 / 6):
            assert (found.p_value(value) < level) == (abs(difference) > found.reach(level))
    assert found.p_value(0.0) == 1.0


def test_holm_steps_down() -> None:
    assert significance.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert significance.holm([0.6, 0.7]) == [1.0, 1.0]
    assert significance.holm([]) == []


def test_collapsed_runs_are_compared_as_by_fishers_test() -> None:
    for n, n_other in itertools.product((1, 3, 5, 8), (2, 5, 15)):
        for k, k_other in itertools.product(range(n + 1), range(n_other + 1)):
            table = [[k, n - k], [k_other, n_other - k_other]]
            expected: Any = stats.fisher_exact(table)
            found = significance.collapse_p((k, n), (k_other, n_other))
            assert found == pytest.approx(expected.pvalue), table


def welch_t(one: Any, other: Any, axis: int = -1) -> Any:
    found: Any = stats.ttest_ind(one, other, equal_var=False, axis=axis)
    return abs(found.statistic)


def test_two_methods_are_relabelled_in_all_ways() -> None:
    found = significance.permutation_p(ONE, [OTHER])  # 35 ways, all of which scipy takes, too
    expected: Any = stats.permutation_test(
        (ONE, OTHER), welch_t, vectorized=True, n_resamples=9999, alternative="greater"
    )
    assert found == [pytest.approx(expected.pvalue)]


def test_several_methods_are_relabelled_together() -> None:
    """The largest |t| of each of all 6!/(2!·2!·2!) labellings, one after the other."""
    control, first, second = [1.0, 2.5], [4.0, 4.75], [1.5, 9.0]
    runs = [*control, *first, *second]
    largest = []
    for order in set(itertools.permutations("ccffss")):
        groups = {name: [runs[at] for at in range(6) if order[at] == name] for name in "cfs"}
        largest.append(max(welch_t(groups[name], groups["c"]) for name in "fs"))
    assert len(largest) == 90
    own = [welch_t(first, control), welch_t(second, control)]
    expected = [np.mean([most >= one - 1e-9 for most in largest]) for one in own]
    assert significance.permutation_p(control, [first, second]) == pytest.approx(expected)


def test_more_labellings_than_can_be_enumerated_are_drawn() -> None:
    """Seven methods of five runs, one of them far ahead: found, the same each time."""
    generator = np.random.default_rng(4)
    runs = generator.normal(size=(7, 5))
    runs[1] += 9
    found = significance.permutation_p(runs[0].tolist(), runs[1:].tolist())
    assert found == significance.permutation_p(runs[0].tolist(), runs[1:].tolist())
    assert 1 / significance.LABELLINGS <= found[0] < 0.01
    assert min(found[1:]) > 0.2


def test_relabelling_holds_its_level_for_any_shape() -> None:
    """Runs that collapse alike under all methods: any of three is called different in 5 %."""
    generator = np.random.default_rng(5)
    called = 0
    for _ in range(400):
        runs = generator.normal(size=(4, 3)) - 10 * (generator.random((4, 3)) < 0.3)
        called += min(significance.permutation_p(runs[0].tolist(), runs[1:].tolist())) <= 0.05
    assert 0.02 <= called / 400 <= 0.075


def test_runs_without_any_spread_are_relabelled_too() -> None:
    assert significance.permutation_p([5.0] * 3, [[5.0] * 3]) == [1.0]
    assert significance.permutation_p([5.0] * 3, [[7.0] * 3]) == [pytest.approx(2 / 20)]


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

    400 sweeps of 7 equal methods, 2,400 comparisons for each case, with the project's own p and
    interval, each for one comparison alone. Simulated are training runs, sampling of responses and
    selection among equally many checkpoints of each method (their dependence within a run
    included). Not simulated: families of different sizes, whose maximum is higher the larger they
    are and of which the table says so.
    """
    generator = np.random.default_rng(10_000 * count + 100 * int(between) + checkpoints)
    called = comparisons = 0
    for _ in range(400):
        scores = final_scores(generator, count, between, checkpoints)
        means = scores.mean(axis=1)
        for method in range(1, 7):
            tested = compared(scores[method].tolist(), scores[0].tolist())
            gap = means[method] - means[0]
            shown = tested.p_value(gap) < 0.05
            assert shown == (abs(gap) > tested.reach())
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
        one, other = generator.normal(0, 2, (2, 5))
        one += 5
        tested = compared(one.tolist(), other.tolist())
        found.append(tested.p_value(one.mean() - other.mean()) < 0.05)
    assert np.mean(found) > 0.85


def test_p_is_a_probability_however_large_the_difference() -> None:
    found = TDistribution(0.5, 60)
    assert 0 <= found.p_value(80.0) <= found.p_value(-20.0) < 1e-9
    adjusted = significance.adjusted([80.0, -20.0, 0.1], [TDistribution(0.76, 60, 0.5)] * 3)
    assert all(0 <= p <= 1 for p in adjusted.p_values)
    assert adjusted.p_values[0] <= adjusted.p_values[1] < 1e-9


# --- the example of the glossary ---

GLOSSARY = (ROOT / "docs/glossary.md").read_text("utf-8")


class Example:
    """The numbers of the page from its right answers of 400, by statistics and scipy alone."""

    def __init__(self) -> None:
        runs: dict[str, list[float]] = {}
        for method, cells in re.findall(r"^\| (\w+), seed \d \| (.*) \|$", GLOSSARY, re.MULTILINE):
            shares = [int(count) / 400 for count in cells.split(" | ")]
            runs.setdefault(method, []).append(100 * statistics.fmean(shares))
        self.vanilla, self.blended = runs["Vanilla"], runs["TRB"]
        both = self.vanilla, self.blended
        self.means = [statistics.fmean(own) for own in both]
        self.spreads = [statistics.stdev(own) for own in both]
        self.errors = [spread / sqrt(3) for spread in self.spreads]
        self.reach: float = stats.t(2).ppf(0.975)
        self.gap = self.means[1] - self.means[0]
        self.error = sqrt(self.errors[0] ** 2 + self.errors[1] ** 2)
        test: Any = stats.ttest_ind(self.blended, self.vanilla, equal_var=False)
        self.t, self.freedom, self.p = test.statistic, test.df, test.pvalue
        self.within: float = stats.t(self.freedom).ppf(0.975)
        self.half = self.within * self.error
        self.interval = f"[{self.gap - self.half:+.1f}, {self.gap + self.half:+.1f}]"
        self.relabelled: Any = stats.permutation_test(
            (self.blended, self.vanilla),
            lambda one, other: float(
                abs(stats.ttest_ind(one, other, equal_var=False).statistic)  # pyright: ignore
            ),
            n_resamples=1000,
            alternative="greater",
        )


def test_the_example_from_counts_to_p_is_right() -> None:
    e, text = Example(), " ".join(GLOSSARY.split())
    means, spreads, (low, high) = e.means, e.spreads, e.errors
    assert e.freedom == pytest.approx(e.error**4 / (low**4 / 2 + high**4 / 2))
    ways = e.relabelled.null_distribution.size
    for said in (
        "or {:.2f}, {:.2f} and {:.2f} %. TRB".format(*e.vanilla),
        "or {:.2f}, {:.2f} and {:.2f} %. 2.".format(*e.blended),
        f"Vanilla has {means[0]:.2f} with a standard deviation of {spreads[0]:.3f}",
        f"TRB {means[1]:.2f} with {spreads[1]:.3f}",
        f"{low:.3f} and {high:.3f}. The t distribution",
        f"within {e.reach:.3f} standard errors: {means[0]:.1f} ± {e.reach * low:.1f} and",
        f"and {means[1]:.1f} ± {e.reach * high:.1f}.",
        f"= {e.gap:.2f}. Its standard error is √({low:.3f}² + {high:.3f}²) = {e.error:.3f}.",
        f"{e.error:.3f}⁴ ÷ ({low:.3f}⁴ ÷ 2 + {high:.3f}⁴ ÷ 2) = {e.freedom:.2f},",
        f"within {e.within:.3f} standard errors: {e.gap:.2f} ± {e.half:.2f}, or {e.interval}.",
        f"is {e.t:.2f} standard errors. Equal means show as many with p = {e.p:.3f}.",
        f"in {ways} ways. Only this one and its mirror",
        f"p = 2 ÷ {ways} = {e.relabelled.pvalue:.3f},",
    ):
        assert said in text, said


def test_the_example_from_counts_to_p_is_what_the_program_computes_and_prints() -> None:
    e = Example()
    own = [significance.spread_of(runs) for runs in (e.vanilla, e.blended)]
    for spread, error in zip(own, e.errors, strict=True):
        over_runs = significance.of_mean(spread)
        assert over_runs is not None
        assert over_runs.reach() == pytest.approx(e.reach * error)
    found = significance.adjusted([e.gap], [compared(e.blended, e.vanilla)])
    assert (found.p_values, found.reaches) == ([pytest.approx(e.p)], [pytest.approx(e.half)])
    relabelled = e.relabelled.pvalue
    assert significance.permutation_p(e.vanilla, [e.blended]) == [pytest.approx(relabelled)]
    printed = " ".join((ROOT / "docs/read-the-table.md").read_text("utf-8").split())
    assert f"{e.gap:+.1f} {e.interval}, p = {e.p:.3f} (by permutation {relabelled:.3f})" in printed
