"""What the figures show: lines, labels and values from plain numbers; gaps where numbers are
missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from math import isnan, nan
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from analysis.facts.curves import Curve, MethodGrid, SeedMean, Series, SupportPoint
from analysis.facts.evidence import Difference, Estimate
from analysis.facts.intervals import Interval
from analysis.facts.probe import Gain
from analysis.figures import panels, picture, probed, setup_map, sweep, tradeoff, training

TITLE = "Costs $5 ← $8"
BUDGETS = (0.001, 0.005, 0.01, 0.02, 0.05)
TRB = {"epsilon0": 0.05, "K": 12}
SKD = {"K": 15, "tau_T": 0.2}


def series(curve: Curve, method: str = "vanilla", sft: bool = False, **knobs: Any) -> Series:
    return Series(method, knobs, curve, sft)


def long_curve(steps: int = 400) -> Curve:
    return {step: [0.5 + (step % 7) / 20] for step in range(steps)}


def line(axes: Axes, label: str) -> Line2D:
    return next(drawn for drawn in axes.get_lines() if drawn.get_label() == label)


def labels(legends: Figure | Legend | None) -> list[str]:
    """The texts of a legend, or of the legend below a figure."""
    if isinstance(legends, Figure):
        (legends,) = legends.legends
    assert legends is not None
    return [text.get_text() for text in legends.get_texts()]


def ticks(axes: Axes) -> list[str]:
    return [tick.get_text() for tick in axes.get_xticklabels()]


def values(drawn: Line2D) -> list[float | None]:
    """Heights, None where the line breaks."""
    return [None if isnan(y) else round(float(y), 6) for y in np.asarray(drawn.get_ydata(), float)]


def panel_title(axes: Axes) -> str:
    """Without the letter."""
    return axes.get_title(loc="left").partition("$  ")[2] or axes.get_title()


def only(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def segments(axes: Axes) -> list[tuple[str, np.ndarray]]:
    """Label and ends of each error bar."""
    bars = [part for part in axes.collections if isinstance(part, LineCollection)]
    return [(str(bar.get_label()), np.asarray(bar.get_segments())[0].round(6)) for bar in bars]


# --- trajectories ---


def test_trajectories_are_lines_in_per_cent_beside_their_difference_to_vanilla() -> None:
    runs = [series({0: [0.1], 20: [0.25, 0.35]}), series({20: [0.5]}, "sft_warmup", sft=True, K=15)]
    figure = training.draw_trajectories([*runs, series({}, "veto")], TITLE)
    axes, difference = figure.axes
    assert labels(figure) == ["Vanilla, 2 seeds", "SFT warmup $K$=15, 1 seed", panels.SPREAD]
    assert values(line(axes, "Vanilla, 2 seeds")) == [10.0, 30.0]
    assert list(np.asarray(line(axes, "Vanilla, 2 seeds").get_xdata())) == [0, 20]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("optimizer step", "mean pass@1 (%)")
    assert values(line(difference, "Vanilla, 2 seeds")) == pytest.approx([0.0, 0.0], abs=1e-9)
    assert values(line(difference, "SFT warmup $K$=15, 1 seed")) == pytest.approx([20.0])
    assert difference.get_ylabel() == "minus vanilla (points)"
    assert figure.get_suptitle() == TITLE
    assert "no step 0" in figure.legends[0].get_title().get_text()


def test_settings_of_one_method_have_shades_of_its_colour_and_one_marker() -> None:
    lines = [series({0: [0.1], 20: [0.2]}), series({20: [0.3]}, "sft_warmup", True, K=15)]
    lines += [series({20: [0.4]}, "sft_warmup", True, K=25)]
    axes = training.draw_trajectories(lines, TITLE).axes[0]
    short, long = line(axes, "SFT warmup $K$=15"), line(axes, "SFT warmup $K$=25")
    assert short.get_marker() == long.get_marker() == panels.STYLES["sft_warmup"][1]
    assert to_hex(long.get_color()).upper() == panels.STYLES["sft_warmup"][0]
    assert short.get_color() != long.get_color()


def test_a_single_line_has_whole_steps_and_no_difference() -> None:
    axes = only(training.draw_trajectories([series({0: [0.1], 1: [0.2], 2: [0.3]})], TITLE))
    assert (axes.get_ylabel(), axes.get_title()) == ("mean pass@1 (%)", TITLE)
    assert all(float(tick).is_integer() for tick in axes.get_xticks())
    assert not axes.collections, "one seed has no band"


def test_seeds_are_a_mean_and_a_band() -> None:
    figure = training.draw_trajectories([series({0: [0.1], 20: [0.2, 0.4], 40: [0.3, 0.3]})], TITLE)
    axes = only(figure)
    assert labels(figure) == ["Vanilla", "±1 s.d. over seeds"]
    assert values(axes.get_lines()[0]) == [10.0, 30.0, 30.0]
    (band,) = (part for part in axes.collections if isinstance(part, PolyCollection))
    heights = np.concatenate([path.vertices for path in band.get_paths()])[:, 1]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert (heights.min(), heights.max()) == pytest.approx((30 - 200**0.5, 30 + 200**0.5))


def test_a_note_stands_over_the_legend_and_lines_name_their_seeds_where_these_differ() -> None:
    lines = [series({0: [0.1, 0.2]}), series({0: [0.1]}, "veto")]
    figure = training.draw_trajectories(lines, TITLE, "One seed each.")
    assert figure.legends[0].get_title().get_text() == "One seed each."
    assert labels(figure) == ["Vanilla, 2 seeds", "Veto, 1 seed", panels.SPREAD]


def test_a_single_point_is_visible() -> None:
    (point,) = only(training.draw_trajectories([series({20: [0.2]})], TITLE)).get_lines()
    assert (values(point), point.get_marker(), point.get_markevery()) == ([20.0], "X", [True])


# --- long and broken lines ---


def test_a_line_breaks_where_a_step_has_no_value() -> None:
    curve: Curve = {step: [] if step in (1, 30, 32) else [0.5] for step in range(40)}
    figure = training.draw_entropy([series(curve)], [], None, TITLE)
    (drawn,) = figure.axes[0].get_lines()
    assert [step for step, value in enumerate(values(drawn)) if value is None] == [1, 30, 32]
    marked = [step for step, mark in enumerate(cast(list[bool], drawn.get_markevery())) if mark]
    assert {0, 31} < set(marked)  # alone, a line would not show them
    assert len(marked) < 10  # the legend's marker is on the line, but not at each point


def test_long_lines_lie_under_their_running_mean() -> None:
    figure = training.draw_entropy([series(long_curve())], [], None, TITLE)
    thin, thick = figure.axes[0].get_lines()
    assert values(thin)[:3] == [0.5, 0.55, 0.6]
    assert values(thick)[200] == pytest.approx(
        sum(0.5 + (s % 7) / 20 for s in range(195, 206)) / 11
    )
    assert thin.get_linewidth() < thick.get_linewidth()
    assert figure.axes[1].get_xlabel() == "optimizer step (thick: 11-step mean)"
    assert labels(figure) == ["Vanilla"]


def test_running_means_take_the_values_that_are_present() -> None:
    first, middle, last = panels.running_mean([1.0, nan, 3.0])
    assert (first, last) == (2.0, 2.0)
    assert isnan(middle)


# --- entropy ---


def test_entropy_stands_over_scores_with_the_warmup_shaded() -> None:
    trust = series({0: [0.1], 1: [0.05]}, "trust_region", **TRB)
    figure = training.draw_entropy(
        [series({0: [0.2], 1: [0.1]}), trust], [series({0: [0.2]})], 12, TITLE
    )
    upper, lower = figure.axes
    assert values(line(upper, "Vanilla")) == [0.2, 0.1]
    assert values(line(lower, "Vanilla")) == [20.0]
    for axes in (upper, lower):
        span = cast(Rectangle, axes.patches[0])
        assert (span.get_x(), span.get_width()) == (0, 12)
    assert upper.get_ylim()[0] == 0
    assert labels(figure) == ["warmup, $K$=12", "Vanilla", r"TRB $\varepsilon_0$=0.05, $K$=12"]
    assert not training.draw_entropy([trust], [], None, TITLE).axes[0].patches


# --- sweeps ---


def grids(spread: float | None = None) -> list[MethodGrid]:
    """Two grids of two knobs, one of one knob, and two methods of a single setting."""
    trust: dict[Any, dict[float, SeedMean | None]] = {}
    fixed: dict[float, SeedMean | None] = {}
    for budget in BUDGETS:
        fixed[budget] = SeedMean(0.4 - budget)
        trust[(("epsilon0", budget),)] = {
            k: SeedMean(0.4 + budget + k / 1000, spread) for k in (15, 25, 50)
        }
    skd: dict[Any, dict[float, SeedMean | None]] = {
        (("tau_T", 0.2),): {15: SeedMean(0.4), 25: None, 50: SeedMean(0.41)},
        (("tau_T", 1.0),): {15: SeedMean(0.42), 25: SeedMean(0.39), 50: SeedMean(0.38)},
    }
    return [
        MethodGrid("trust_region", "K", {}, trust),
        MethodGrid("skd", "K", {}, skd),
        MethodGrid("fixed_epsilon", "epsilon", {}, {(): fixed}),
        MethodGrid("veto", None, {"beta_start": 0.4}, {(): {0: SeedMean(0.37, margin=0.02)}}),
        MethodGrid("sft_warmup", None, {"K": 15}, {(): {0: SeedMean(0.44, spread)}}),
    ]


def test_a_panel_for_each_grid_and_vanilla_across() -> None:
    figure = sweep.draw(grids(), SeedMean(0.39), TITLE)
    first, second, third, fourth = figure.axes
    assert list(map(panel_title, figure.axes)) == ["TRB", "SKD", "Fixed ε", "single settings"]
    assert values(line(first, r"TRB $\varepsilon_0$=0.001")) == [41.6, 42.6, 45.1]
    assert ticks(first) == ["15", "25", "50"]
    assert values(line(second, r"SKD $\tau_T$=0.2")) == [40.0, None, 41.0]
    assert values(line(third, "Fixed ε")) == [39.9, 39.5, 39.0, 38.0, 35.0]
    assert values(line(fourth, r"Veto $\beta_0$=0.4")) == [37.0]
    assert [values(line(axes, "Vanilla")) for axes in figure.axes] == [[39.0, 39.0]] * 4
    assert line(first, "Vanilla").get_linestyle() == "--"
    assert len(labels(figure)) == 5 + 2 + 1 + 2 + 1 + 1


def test_a_method_looks_the_same_in_every_panel_and_figure() -> None:
    figure = sweep.draw(grids(), None, TITLE)
    drawn = {str(own.get_label()): own for axes in figure.axes for own in axes.get_lines()}
    for start, method, shades in (
        ("TRB", "trust_region", 5),
        ("SKD", "skd", 2),
        ("Fixed", "fixed_epsilon", 1),
        ("Veto", "veto", 1),
    ):
        lines = [own for label, own in drawn.items() if label.startswith(start)]
        assert {own.get_marker() for own in lines} == {panels.STYLES[method][1]}
        colors = [to_hex(own.get_color()).upper() for own in lines]
        assert (colors[-1], len(set(colors))) == (panels.STYLES[method][0], shades)


def test_points_are_points_on_the_page_and_in_the_legend() -> None:
    handles = sweep.draw(grids(), None, TITLE).legends[0].get_lines()
    styles = {str(handle.get_label()): handle.get_linestyle() for handle in handles}
    assert (styles[r"Veto $\beta_0$=0.4"], styles["Fixed ε"]) == ("None", "-")


def test_bars_are_of_seeds_or_of_problems() -> None:
    bars: list[list[tuple[str, list[float]]]] = []
    for axes in sweep.draw(grids(0.01), None, TITLE).axes:
        bars.append([(label, list(ends[:, 1])) for label, ends in segments(axes)])
    first, second, _, single = bars
    assert len(first) == 15
    assert first[0] == (panels.SPREAD, [40.6, 42.6])
    assert second == []
    assert single == [(panels.MARGIN, [35.0, 39.0]), (panels.SPREAD, [43.0, 45.0])]


def test_a_grid_of_two_points() -> None:
    grid = MethodGrid("skd", "K", {"tau_T": 0.6}, {(): {15: SeedMean(0.5), 25: None}})
    axes = only(sweep.draw([grid], None, TITLE))
    assert values(line(axes, "SKD")) == [50.0, None]
    assert axes.get_xlabel() == r"$K$   (at $\tau_T$=0.6)"


CELLS: dict[tuple[float, float], SeedMean | None] = {
    (budget, float(k)): SeedMean(0.3 + budget * 2 + k / 1000)
    for budget in BUDGETS
    for k in (15, 25, 50)
} | {(0.05, 15.0): None}


def test_the_heat_map_has_a_row_for_each_budget_and_a_column_for_each_warmup() -> None:
    axes = only(sweep.draw_heat(CELLS, SeedMean(0.39), TITLE))
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert len(texts) == 14, "a cell without a score is empty"
    assert texts[0, 0] == "31.7\n−7.3"  # the smallest budget and the shortest warmup, at the origin
    assert texts[2, 3] == "39.0\n0.0"
    assert texts[2, 4] == "45.0\n+6.0"
    assert (ticks(axes), [t.get_text() for t in axes.get_yticklabels()]) == (
        ["15", "25", "50"],
        ["0.001", "0.005", "0.01", "0.02", "0.05"],
    )
    assert axes.get_ylim()[0] < axes.get_ylim()[1]
    leads = axes.images[0].get_array()
    assert leads is not None
    assert float(leads[4, 2]) == pytest.approx(6.0)
    assert bool(np.ma.getmaskarray(leads)[4, 0] or isnan(leads[4, 0]))
    assert axes.images[0].get_clim() == pytest.approx((-7.3, 7.3))


def test_a_heat_map_without_vanilla_has_scores_and_no_colours() -> None:
    axes = only(sweep.draw_heat(CELLS, None, TITLE))
    assert {text.get_text() for text in axes.texts} >= {"31.7", "45.0"}
    leads = axes.images[0].get_array()
    assert leads is not None
    assert np.isnan(np.ma.getdata(leads)).all()


# --- support and reward ---

SCHEDULES = [("trust_region", k) for k in (15, 25, 50)] + [("fixed_epsilon", None)]


def cloud() -> list[SupportPoint]:
    points = [SupportPoint("vanilla", None, None, 0, -0.65, 0.78, 0.25)]
    for (method, warmup), budget in product(SCHEDULES, BUDGETS):
        place = (-0.6 + budget * 4, 0.75 - budget, 0.3 + budget)
        points.append(SupportPoint(method, budget, warmup, 0, *place))
    return points


def scattered(figure: Figure) -> list[PathCollection]:
    return [part for part in figure.axes[0].collections if isinstance(part, PathCollection)]


def test_a_point_for_each_run() -> None:
    figure = tradeoff.draw(cloud(), TITLE)
    places = {tuple(np.asarray(part.get_offsets())[0].round(6)) for part in scattered(figure)}
    assert places == {(round(p.log_prob, 6), round(p.auroc, 6)) for p in cloud()}
    assert labels(figure) == [
        *("TRB $K$=15", "TRB $K$=25", "TRB $K$=50", "Fixed ε", "Vanilla"),
        *(rf"size: $\varepsilon$={budget:g}" for budget in BUDGETS),
    ]
    paths = [list(np.asarray(path.get_xdata(), float)) for path in figure.axes[0].get_lines()]
    assert paths == list(map(sorted, paths))
    assert sorted(map(len, paths)) == [1, 5, 5, 5, 5]


def test_color_is_reward_and_size_is_budget() -> None:
    figure = tradeoff.draw(cloud(), TITLE)
    light, sizes = [], []
    for part in scattered(figure)[1:6]:  # of one schedule, in ascending order of the budget
        light.append(part.to_rgba(np.asarray(part.get_array()))[0][:3].sum())
        sizes.append(part.get_sizes()[0])
    assert (light, sizes) == (sorted(set(light)), sorted(set(sizes)))
    assert figure.axes[1].get_ylabel() == "correct rollouts (%)"
    assert figure.axes[1].get_ylim() == pytest.approx((25, 35))


def test_one_run_is_a_figure() -> None:
    figure = tradeoff.draw(cloud()[:1], TITLE)
    assert labels(figure) == ["Vanilla"]
    axes, least = figure.axes[0], (tradeoff.LEAST_LOG_PROB, tradeoff.LEAST_AUROC)
    assert (np.ptp(axes.get_xlim()), np.ptp(axes.get_ylim())) == pytest.approx(least, rel=0.2)


def test_points_have_crosses_where_steps_can_be_left_out() -> None:
    point = replace(cloud()[0], log_prob_margin=0.03, auroc_margin=0.02)
    figure = tradeoff.draw([point, cloud()[1]], TITLE)
    lengths = [list(np.ptp(ends, axis=0).round(6)) for _, ends in segments(figure.axes[0])]
    assert lengths == [[0.06, 0.0], [0.0, 0.04]]
    assert labels(figure)[-1] == tradeoff.INTERVAL
    assert tradeoff.widened([0.2, 0.21], 0.1) == pytest.approx((0.155, 0.255))
    assert tradeoff.widened([0.2, 0.5], 0.1) == (0.2, 0.5)


# --- continuation gains ---

GAINS: dict[str, dict[int, Gain | None]] = {
    "student": {64: (0.25, 0.1, 0.4), 128: None, 32: (-0.125, -0.2, None)},
    "teacher": {32: (0.0, -0.1, 0.1), 64: (0.5, 0.25, 0.75)},
}


def test_bars_of_gains_with_their_intervals() -> None:
    figure = probed.draw_continuation(GAINS, TITLE)
    axes = only(figure)
    bars = {round(bar.get_x() + bar.get_width() / 2, 6): bar.get_height() for bar in axes.patches}  # pyright: ignore[reportAttributeAccessIssue]
    assert bars == {-0.2: -12.5, 0.8: 25.0, 0.2: 0.0, 1.2: 50.0}
    intervals = [list(ends[:, 1]) for _, ends in segments(axes)]
    assert intervals == [[10, 40], [-10, 10], [25, 75]]
    assert ticks(axes) == ["32", "64", "128"]
    named = ["continued by the student", "continued by the teacher"]
    assert labels(figure) == [probed.INTERVAL, *named]
    # A gain that is missing has words and no bar.
    marks = [(text.get_text(), tuple(np.round(text.get_position(), 6))) for text in axes.texts]
    assert marks == [("no data", (1.8, 0)), ("no data", (2.2, 0))]


# --- the overview ---


def example(budgets: Sequence[float] = BUDGETS) -> dict[str, Any]:
    p, q = [0.5, 0.2, 0.1, 0.1, 0.05, 0.05], [0.02, 0.08, 0.6, 0.1, 0.1, 0.1]
    halfway = list(np.mean([p, q], axis=0))
    return {
        "tokens": ["3", " the", "\n", "$x$", "因此", "a long token indeed"],
        "p": p,
        "q": q,
        "solutions": [{"epsilon": e, "beta": e**0.5, "kl": e, "mu": halfway} for e in budgets],
        "path": [[i / 50, (i / 50) ** 2] for i in range(51)],
        "prefix": "so\n $1 + 2$ 因",
    }


def dashed(axes: Axes) -> list[float | None]:
    """Heights of the budgets."""
    return [values(own)[0] for own in axes.get_lines() if own.get_linestyle() == "--"]


def test_the_path_with_each_budget_and_its_beta() -> None:
    left, _ = probed.draw_overview(example(), TITLE).axes
    path = left.get_lines()[-1]
    xs, ys = np.asarray(path.get_xdata(), float), np.asarray(path.get_ydata(), float)
    assert (xs[0], xs[-1], ys[-1]) == (1 / 50, 1.0, 1.0)
    assert set(BUDGETS) < set(ys)
    assert list(xs) == sorted(xs)
    solved = line(left, r"$\varepsilon$=0.01: $\beta^*$=0.1")
    assert (list(np.asarray(solved.get_xdata())), values(solved)) == ([0.1], [0.01])
    assert dashed(left) == list(BUDGETS)
    assert len(labels(left.get_legend())) == len(BUDGETS)


def test_bars_of_student_solutions_and_teacher() -> None:
    _, right = probed.draw_overview(example(), TITLE).axes
    heights = [bar.get_height() for bar in right.patches]  # pyright: ignore[reportAttributeAccessIssue]
    assert (heights[:6], heights[-6:]) == (example()["p"], example()["q"])
    solved = [rf"$\mu^*$ at $\varepsilon$={budget}" for budget in (0.001, 0.01, 0.05)]
    assert labels(right.get_legend()) == [r"student $\pi_S$", *solved, r"teacher $\pi_T$"]
    assert ticks(right) == ["3", "␣the", "↵", "$x$", r"\u56e0\u6b64"[:9] + "…", "a␣long␣to…"]
    assert right.get_xlabel() == "next token after “so $1 + 2$ ·”"


def test_a_budget_of_nothing_is_the_student() -> None:
    left, right = probed.draw_overview(example([0.0, 0.01]), TITLE).axes
    assert dashed(left) == [0.01]
    assert len(right.patches) == 4 * 6


# --- diagnostics ---


def columns() -> dict[str, list[Series]]:
    both = [series(long_curve()), series(long_curve(), "trust_region", **TRB)]
    blended = [series({step: [0.01 * step] for step in range(50)}, "trust_region", **TRB)]
    own = ("beta", "teacher_feasible", "behavior_kl", "acceptance", "rounds_per_token")
    rows = {key: blended if key in own else both for key in training.PANELS}
    return rows | {"replaced": [series({step: [0.01 * step] for step in range(400)}, "skd", **SKD)]}


def test_a_panel_for_each_column_that_is_there() -> None:
    some = {key: columns()[key] for key in ("beta", "reward", "replaced", "truncated")}
    figure = training.draw_diagnostics(some | {"acceptance": [series({0: [], 1: []})]}, TITLE)
    shown = [axes for axes in figure.axes if axes.axison]
    titles = [r"mean $\beta^*$", "tokens replaced (%)", "truncated (%)", "correct (%)"]
    assert list(map(panel_title, shown)) == titles
    assert values(shown[0].get_lines()[0])[:3] == [0.0, 0.01, 0.02]
    assert values(shown[1].get_lines()[0])[:3] == [0.0, 1.0, 2.0]
    steps = [axes.get_xlabel().split(" (")[0] for axes in shown]
    assert steps == ["blended step", *["optimizer step"] * 3]
    assert shown[0].get_xlim()[1] < 60 < shown[1].get_xlim()[1]
    assert shown[2].get_xlim() == shown[3].get_xlim()


def test_a_method_has_one_color_in_all_panels() -> None:
    named = []
    for axes in training.draw_diagnostics(columns(), TITLE).axes:
        named += [own for own in axes.get_lines() if str(own.get_label()).startswith("TRB")]
    assert {own.get_color() for own in named} == {panels.BLUE}
    assert len(named) == len(training.PANELS) - 1


# --- leads over vanilla in many setups ---


def lead(value: int, p_value: float | None) -> Difference:
    estimate = Estimate(Fraction(value), Interval(value - 2, value + 2), "seeds")
    return Difference(estimate, (3, 3), "tested", p_value=p_value, corrected_for=2)


LEADS = [
    setup_map.SetupLeads("calm", {"skd": lead(1, 0.2)}, {}),
    setup_map.SetupLeads(
        TITLE,
        {"skd": lead(-7, 0.001), "sft_warmup": lead(4, 0.03)},
        {"student": (0.25, 0.1, 0.4), "teacher": (0.5, None, None)},
        Fraction(7),
        Fraction(21, 2),
    ),
    setup_map.SetupLeads("unprobed", {"skd": lead(2, 0.2)}, {"student": None}),
]


def test_a_map_has_a_row_for_each_setup() -> None:
    grid, gains = setup_map.draw(LEADS, ["skd", "sft_warmup"]).axes
    assert [label.get_text() for label in grid.get_yticklabels()] == ["calm", TITLE, "unprobed"]
    assert "Welch" in grid.get_xlabel(), "the test behind the stars is named"
    assert ticks(grid) == ["Untrained", "Vanilla", "SKD", "SFT\nwarmup"]
    cells = {text.get_position(): text.get_text() for text in grid.texts}
    assert [[cells[column, row] for column in range(4)] for row in range(3)] == [
        ["", "", "+1.0", ""],
        ["7.0", "10.5", "−7.0**", "+4.0*"],
        ["", "", "+2.0", ""],
    ]
    # A cell without a number has no colour.
    [image] = grid.get_images()
    numbers = np.ma.filled(image.get_array(), np.nan)
    assert np.isnan(numbers[:, :2]).all(), "scores of different setups are not comparable"
    np.testing.assert_array_equal(numbers[:, 2:], [[1, np.nan], [-7, 4], [2, np.nan]])
    assert image.get_clim() == (-7, 7)
    # Both gains are of the second setup, and one of them has an interval.
    points = [line.get_xdata()[0] for line in gains.get_lines() if line.get_marker() == "o"]
    assert points == [1.25, 1.5]
    assert [list(ends[:, 0]) for _, ends in segments(gains)] == [[1.1, 1.4]]
    assert {round(ends[0, 1]) for _, ends in segments(gains)} == {1}


def test_a_map_without_a_probe_has_the_grid_alone() -> None:
    [grid] = setup_map.draw([replace(row, gains={}) for row in LEADS], ["skd"]).axes
    assert ticks(grid) == ["Untrained", "Vanilla", "SKD"]


# --- all of them, at the size of the paper's sweep ---

SETTINGS: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "trust_region": {"epsilon0": 0.001, "K": 50},
    "fixed_epsilon": {"epsilon": 0.001},
    "veto": {"beta_start": 0.2},
    "skd": SKD,
    "temperature_warmup": {"tau0": 0.95, "E": 25},
    "sft_warmup": {"K": 50},
    "a_new_one": {"gamma": 3.0},
}
SCORED: Curve = {step: [0.2 + step / 2000] for step in range(0, 401, 20)}
SCORES = [series(SCORED, method, **knobs) for method, knobs in SETTINGS.items()]
DRAW: dict[str, Callable[[float], Figure]] = {
    "trajectories": lambda width: training.draw_trajectories(
        SCORES, TITLE, "One seed each.", width
    ),
    "entropy": lambda width: training.draw_entropy(
        [series(long_curve())], SCORES[:2], 50, TITLE, width=width
    ),
    "sweep": lambda width: sweep.draw(grids(0.01), SeedMean(0.39, 0.01), TITLE, width),
    "heatmap": lambda width: sweep.draw_heat(CELLS, SeedMean(0.39), TITLE, width),
    "tradeoff": lambda width: tradeoff.draw(cloud(), TITLE, width),
    "continuation": lambda width: probed.draw_continuation(GAINS, TITLE, width),
    "map": lambda width: setup_map.draw(LEADS, ["skd", "sft_warmup"], width),
    "overview": lambda width: probed.draw_overview(example(), TITLE, width),
    "diagnostics": lambda width: training.draw_diagnostics(columns(), TITLE, width),
}


@cache
def drawn(name: str, width: float = panels.WIDTH) -> tuple[Figure, bytes]:
    """A figure, laid out and drawn as PNG, and the file."""
    figure = DRAW[name](width)
    return figure, picture.to_bytes(figure, "png")


@pytest.mark.parametrize("width", [panels.WIDTH, 5.5, 3.7])
@pytest.mark.parametrize("name", DRAW)
def test_no_text_lies_on_another(name: str, width: float) -> None:
    figure, _ = drawn(name, width)
    assert figure.get_figwidth() == width
    right, top = figure.get_size_inches() * figure.dpi
    boxes, outside = {}, []
    for text in outer_texts(figure):
        if text.get_rotation() % 90 == 0:
            box = boxes[text] = text.get_window_extent()
            if min(box.x0, box.y0) < -1 or box.x1 > right + 1 or box.y1 > top + 1:
                outside.append(text)
    assert [(a, b) for a, b in combinations(boxes, 2) if boxes[a].overlaps(boxes[b])] == []
    assert outside == []


def outer_texts(figure: Figure) -> Iterator[Any]:
    """Titles, names and numbers of axes, legends."""
    yield from figure.texts
    for legend in [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]:
        yield from legend.get_texts()
    for axes in figure.axes:
        if axes.axison:
            named = [axes.title, cast(Any, axes)._left_title, axes.xaxis.label, axes.yaxis.label]
            for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
                for tick in axis.get_major_ticks():
                    if low <= tick.get_loc() <= high and tick.label1.get_visible():
                        named.append(tick.label1)
            yield from (text for text in named if text.get_text())


@pytest.mark.parametrize("name", DRAW)
def test_the_same_numbers_give_the_same_bytes_in_any_order(name: str) -> None:
    (figure, png), again = drawn(name), DRAW[name](panels.WIDTH)
    svg = picture.to_bytes(figure, "svg")
    assert picture.to_bytes(again, "svg") == svg
    assert picture.to_bytes(again, "png") == png
    assert not any(mark in data for data in (png, svg) for mark in (b"dc:date", b"Software"))
    assert max(len(png), len(svg)) < 400_000


def test_saving_writes_both_formats_and_nothing_else(tmp_path: Path) -> None:
    paths = picture.save(drawn("sweep")[0], tmp_path, "sweep")
    assert [path.name for path in paths] == ["sweep.png", "sweep.pdf"]
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    pdf = paths[1].read_bytes()
    assert pdf.startswith(b"%PDF")
    assert b"CreationDate" not in pdf
    assert pdf == picture.to_bytes(DRAW["sweep"](panels.WIDTH), "pdf")


def test_drawing_leaves_no_trace_in_the_settings() -> None:
    before = dict(mpl.rcParams)
    picture.to_bytes(training.draw_trajectories([series({0: [0.1]})], TITLE), "svg")
    assert dict(mpl.rcParams) == before
