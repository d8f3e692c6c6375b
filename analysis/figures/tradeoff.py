"""Teacher support against separability of early rollouts (paper, "Additional Warmup Diagnostics")."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from math import inf
from typing import Any

from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.facts import curves
from analysis.facts.curves import POOLED_STEPS, SetupRuns, SupportPoint
from analysis.figures import panels
from analysis.figures.picture import Caption, Picture
from orchestrator.experiment.methods import METHODS

CAPTION = Caption(
    "tradeoff",
    "Support against separability",
    "scatter plot of the AUROC of the teacher-support score over the mean teacher log-prob of sampled tokens",
    "The rollouts of a run's first steps: how likely the teacher finds them, and how well its support ranks "
    "correct above incorrect ones. Colour: share of correct rollouts.",
    "Early rollouts only; where a run ends is not in it.",
)
BASIS = f"A point is one run; crosses: 95 % intervals over its first {POOLED_STEPS} steps, by jackknife."

# One for each K; the first is the trust region's in the other figures.
SCHEDULE_MARKERS = ("o", "s", "^", "D", "v", "h", "<", ">")
COLORS = "cividis"  # runs from dark to light and reads the same with any colour vision
# The least span of axes and colours, so that points which hardly differ look alike.
LEAST_LOG_PROB, LEAST_AUROC, LEAST_REWARD = 0.1, 0.1, 10.0  # nats, probability, per cent
INTERVAL = "95 % over steps"

FadedMethod = tuple[str, int | None]  # method, and the steps after which it has faded


@panels.styled()
def draw(points: Sequence[SupportPoint], title: str, width: float = panels.WIDTH) -> Figure:
    """A point for each run; `points` has at least one.

    The shape of a point is its schedule, the size its budget, the colour its share of correct
    rollouts. A line joins the runs of a schedule and seed in ascending order of the budget. Thin
    crosses are 95 % intervals over the pooled steps.
    """
    figure = panels.new_figure(width, 4.6)
    axes = figure.subplots()
    rewards = [100 * point.reward for point in points]
    norm = Normalize(*widened(rewards, LEAST_REWARD))
    sizes, markers = _sizes(points), _markers(points)
    paths: dict[tuple[FadedMethod, int], list[SupportPoint]] = defaultdict(list)
    for point in sorted(points, key=lambda point: point.epsilon or 0):
        paths[_schedule(point), point.seed].append(point)
    for path in paths.values():
        xs, ys = [point.log_prob for point in path], [point.auroc for point in path]
        axes.plot(xs, ys, color=panels.GRAY, linewidth=0.7, zorder=1)
    cross: Any = {"fmt": "none", "ecolor": panels.GRAY, "elinewidth": 0.8, "zorder": 1.5}
    disc: Any = {"edgecolors": panels.BLACK, "linewidths": 0.6, "zorder": 2}
    for point in points:
        x, y = point.log_prob, point.auroc
        axes.errorbar(x, y, xerr=point.log_prob_margin, yerr=point.auroc_margin, **cross)
        size, marker = sizes[point.epsilon] ** 2, markers[_schedule(point)]
        color = {"c": [100 * point.reward], "norm": norm, "cmap": COLORS}
        axes.scatter(x, y, s=size, marker=marker, **color, **disc)
    figure.colorbar(ScalarMappable(norm, COLORS), ax=axes, label="correct rollouts (%)")
    axes.set_xlabel("mean teacher log-prob of sampled tokens (nats)")
    axes.set_ylabel("AUROC of the teacher-support score")
    axes.set_xlim(*widened(axes.get_xlim(), LEAST_LOG_PROB))
    axes.set_ylim(*widened(axes.get_ylim(), LEAST_AUROC))
    panels.set_title(axes, title)
    panels.legend_below(figure, _legend(points, markers, sizes))
    return figure


def widened(values: Iterable[float], least: float) -> tuple[float, float]:
    """The range of some values, widened to `least` about its middle if it is narrower."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    extra = max(0.0, least - (high - low)) / 2
    return low - extra, high + extra


def _schedule(point: SupportPoint) -> FadedMethod:
    return point.method, point.warmup


def _sizes(points: Sequence[SupportPoint]) -> dict[float | None, float]:
    """Marker diameters (points), growing with the budget."""
    budgets = sorted({point.epsilon for point in points if point.epsilon is not None})
    step = 7 / max(1, len(budgets) - 1)
    sizes: dict[float | None, float] = {None: 11}
    return sizes | {budget: 5 + step * index for index, budget in enumerate(budgets)}


def _markers(points: Sequence[SupportPoint]) -> dict[FadedMethod, str]:
    """A marker for each schedule, in ascending order of K.

    Methods that never fade come last, with their markers of the other figures.
    """
    schedules = sorted(set(map(_schedule, points)), key=lambda own: (own[1] or inf, own[0]))
    markers = {}
    for index, (method, warmup) in enumerate(schedules):
        own = panels.method_style(method)[1]
        fading = SCHEDULE_MARKERS[index % len(SCHEDULE_MARKERS)]
        markers[method, warmup] = own if warmup is None else fading
    return markers


def _legend(
    points: Sequence[SupportPoint],
    markers: dict[FadedMethod, str],
    sizes: dict[float | None, float],
) -> list[Line2D]:
    handles = []
    outline: dict[str, Any] = {"color": "none", "markeredgecolor": panels.BLACK, "markersize": 8}
    for (method, warmup), marker in markers.items():
        fades = METHODS[method].fades
        knobs = {} if fades is None or warmup is None else {fades: warmup}
        label = panels.setting_text(method, knobs)
        handles.append(Line2D([], [], label=label, marker=marker, **outline))
    # Sizes are shown by a filled disc, which is the shape of no schedule.
    filled: Any = {"color": "none", "markerfacecolor": panels.GRAY, "markeredgecolor": "none"}
    for budget, size in sizes.items():
        if budget is not None:
            label = f"size: {panels.EPSILON}={budget:g}"
            handles.append(Line2D([], [], label=label, marker="o", markersize=size, **filled))
    if any(point.auroc_margin is not None for point in points):
        handles.append(Line2D([], [], color=panels.GRAY, linewidth=0.8, label=INTERVAL))
    return handles


def picture(data: SetupRuns) -> Picture:
    """Support against separability of the first rollouts, a point for each run."""
    points = curves.support_points(data.study, data.settings)
    if not points:
        methods = ", ".join(curves.budget_knobs())
        steps = f"{POOLED_STEPS} steps done with correct and incorrect rollouts"
        return Picture(CAPTION, data.name, missing=f"no run of {methods} has its first {steps}")
    return Picture(CAPTION, data.name, partial(draw, points, data.title), BASIS)
