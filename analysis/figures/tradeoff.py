"""Teacher support against separability of early rollouts (paper, "Additional Warmup Diagnostics")."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from math import inf
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figures import support
from analysis.figures.picture import Caption, Picture, SetupRuns
from analysis.figures.style import (
    BLACK,
    EPSILON,
    GRAY,
    WIDTH,
    legend_columns,
    look,
    new_figure,
    set_title,
    setting_text,
    styled,
)
from analysis.figures.support import SupportPoint
from analysis.labels import method_label
from orchestrator.experiment.methods import METHODS

CAPTION = Caption(
    "Support against separability",
    "scatter plot of the AUROC of the teacher-support score over the mean teacher log-prob of sampled tokens",
    "The rollouts of a run's first steps: how likely the teacher finds them, and how well its support ranks "
    "correct above incorrect ones. Colour: share of correct rollouts.",
    "Early rollouts only; where a run ends is not in it.",
)

SCHEDULE_MARKERS = (
    "o",
    "s",
    "^",
    "D",
    "v",
    "h",
    "<",
    ">",
)  # one for each K, the first as in the other figures
COLORS = "cividis"  # runs from dark to light and reads the same with any colour vision
# What the axes and the colours span at least, so that points which hardly differ look it.
LEAST_LOG_PROB, LEAST_AUROC, LEAST_REWARD = 0.1, 0.1, 10.0  # nats, probability, per cent
INTERVAL = "95 % over steps"

Schedule = tuple[str, int | None]  # method, and after how many steps it has faded


@styled()
def draw(points: Sequence[SupportPoint], title: str, width: float = WIDTH) -> Figure:
    """A point for each run: its shape is the schedule, its size the budget, its colour the share of
    correct rollouts.

    Runs of a schedule and seed are joined by a line in ascending order of the budget; thin crosses
    are 95 % intervals over the pooled steps. At least one point.
    """
    figure = new_figure(width, 4.6)
    axes = figure.subplots()
    rewards = [100 * point.reward for point in points]
    color = ScalarMappable(Normalize(*widened(rewards, LEAST_REWARD)), COLORS)
    sizes, markers = _sizes(points), _markers(points)
    for path in _paths(points):
        axes.plot(
            [p.log_prob for p in path], [p.auroc for p in path], color=GRAY, linewidth=0.7, zorder=1
        )
    for point in points:
        _draw_cross(axes, point)
    for schedule, marker in markers.items():
        own = [point for point in points if _schedule(point) == schedule]
        xs, ys = [point.log_prob for point in own], [point.auroc for point in own]
        fill = color.to_rgba(np.array([100 * point.reward for point in own]))
        areas = [sizes[point.epsilon] ** 2 for point in own]
        axes.scatter(
            xs, ys, s=areas, c=fill, marker=marker, edgecolors=BLACK, linewidths=0.6, zorder=2
        )
    figure.colorbar(color, ax=axes, label="correct rollouts (%)")
    axes.set(
        xlabel="mean teacher log-prob of sampled tokens (nats)",
        ylabel="AUROC of the teacher-support score",
    )
    axes.set_xlim(*widened(axes.get_xlim(), LEAST_LOG_PROB))
    axes.set_ylim(*widened(axes.get_ylim(), LEAST_AUROC))
    set_title(axes, title)
    handles = _legend(markers, sizes)
    if any(point.auroc_margin is not None for point in points):
        handles.append(Line2D([], [], color=GRAY, linewidth=0.8, label=INTERVAL))
    columns = legend_columns([str(handle.get_label()) for handle in handles], width)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    return figure


def widened(values: Iterable[float], least: float) -> tuple[float, float]:
    """The range of some values, made `least` wide about its middle where it is narrower."""
    found = list(values)
    low, high = min(found), max(found)
    extra = max(0.0, least - (high - low)) / 2
    return low - extra, high + extra


def _draw_cross(axes: Axes, point: SupportPoint) -> None:
    look: dict[str, Any] = {"color": GRAY, "linewidth": 0.8, "zorder": 1.5}
    x, y = point.log_prob, point.auroc
    if point.log_prob_margin is not None:
        axes.hlines(y, x - point.log_prob_margin, x + point.log_prob_margin, **look)
    if point.auroc_margin is not None:
        axes.vlines(x, y - point.auroc_margin, y + point.auroc_margin, **look)


def _schedule(point: SupportPoint) -> Schedule:
    return point.method, point.warmup


def _sizes(points: Sequence[SupportPoint]) -> dict[float | None, float]:
    """Marker diameters (points), growing with the budget."""
    budgets = sorted({point.epsilon for point in points if point.epsilon is not None})
    step = 7 / max(1, len(budgets) - 1)
    sizes: dict[float | None, float] = {
        budget: 5 + step * index for index, budget in enumerate(budgets)
    }
    return sizes | {None: 11}


def _markers(points: Sequence[SupportPoint]) -> dict[Schedule, str]:
    """Schedules in ascending order of K, then those that never fade, with the marker of their
    method elsewhere.
    """
    schedules = sorted(
        {_schedule(p) for p in points}, key=lambda schedule: (schedule[1] or inf, schedule[0])
    )
    fading = [schedule for schedule in schedules if schedule[1] is not None]
    markers = {
        schedule: SCHEDULE_MARKERS[index % len(SCHEDULE_MARKERS)]
        for index, schedule in enumerate(fading)
    }
    return markers | {
        schedule: look(schedule[0])[1] for schedule in schedules if schedule[1] is None
    }


def _paths(points: Sequence[SupportPoint]) -> list[list[SupportPoint]]:
    paths: dict[tuple[Schedule, int], list[SupportPoint]] = defaultdict(list)
    for point in sorted(points, key=lambda point: point.epsilon or 0):
        paths[_schedule(point), point.seed].append(point)
    return list(paths.values())


def _legend(markers: dict[Schedule, str], sizes: dict[float | None, float]) -> list[Line2D]:
    outline: dict[str, Any] = {"color": "none", "markeredgecolor": BLACK}
    entries = [
        Line2D([], [], label=_schedule_name(schedule), marker=marker, markersize=8, **outline)
        for schedule, marker in markers.items()
    ]
    filled: dict[str, Any] = {
        "color": "none",
        "markerfacecolor": GRAY,
        "markeredgecolor": "none",
    }  # no method's shape
    return entries + [
        Line2D([], [], label=f"size: {EPSILON}={budget:g}", marker="o", markersize=size, **filled)
        for budget, size in sizes.items()
        if budget is not None
    ]


def _schedule_name(schedule: Schedule) -> str:
    method, warmup = schedule
    fades = METHODS[method].fades
    return (
        method_label(method)
        if fades is None or warmup is None
        else setting_text(method, {fades: warmup})
    )


def picture(data: SetupRuns) -> Picture:
    """Support against separability of the first rollouts, a point for each run."""
    name = f"tradeoff-{data.name}"
    points = support.support_points(data.study, data.settings)
    if not points:
        wanted = f"{support.POOLED_STEPS} steps done with correct and incorrect rollouts"
        return Picture(
            name,
            CAPTION,
            missing=f"no run of {', '.join(support.budgets())} has its first {wanted}",
        )
    basis = f"A point is one run; crosses: 95 % intervals over its first {support.POOLED_STEPS} steps, by jackknife."
    return Picture(name, CAPTION, partial(draw, points, data.title), basis=basis)
