"""Teacher support against separability of early rollouts (paper, "Additional Warmup Diagnostics")."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figures.style import BLACK, GRAY, KNOBS, WIDTH, new_figure, set_title, styled
from analysis.support import SupportPoint

MARKERS = ("o", "s", "^", "D", "v", "h", "<", ">")
VANILLA = "*"
COLORS = "cividis"  # runs from dark to light and reads the same with any colour vision

Schedule = tuple[str, int | None]  # method and K


@styled()
def draw(points: Sequence[SupportPoint], title: str) -> Figure:
    """A point for each run: its shape is the schedule, its size the budget, its colour the share of correct rollouts.

    Runs of a schedule and seed are joined by a line in ascending order of the budget. At least one point.
    """
    figure = new_figure(WIDTH, 4.6)
    axes = figure.subplots()
    rewards = [100 * point.reward for point in points]
    color = ScalarMappable(Normalize(min(rewards), max(rewards)), COLORS)
    sizes, markers = _sizes(points), _markers(points)
    for path in _paths(points):
        axes.plot([p.log_prob for p in path], [p.auroc for p in path], color=GRAY, linewidth=0.7, zorder=1)
    for schedule, marker in markers.items():
        own = [point for point in points if _schedule(point) == schedule]
        xs, ys = [point.log_prob for point in own], [point.auroc for point in own]
        fill = color.to_rgba(np.array([100 * point.reward for point in own]))
        areas = [sizes[point.epsilon] ** 2 for point in own]
        axes.scatter(xs, ys, s=areas, c=fill, marker=marker, edgecolors=BLACK, linewidths=0.6, zorder=2)
    figure.colorbar(color, ax=axes, label="correct rollouts (%)")
    axes.set(xlabel="mean teacher log-prob of sampled tokens (nats)", ylabel="AUROC of the teacher-support score")
    set_title(axes, title)
    figure.legend(handles=_legend(markers, sizes), loc="outside lower center", ncols=5)
    return figure


def _schedule(point: SupportPoint) -> Schedule:
    return point.method, point.warmup


def _sizes(points: Sequence[SupportPoint]) -> dict[float | None, float]:
    """Marker diameters (points), growing with the budget."""
    budgets = sorted({point.epsilon for point in points if point.epsilon is not None})
    step = 7 / max(1, len(budgets) - 1)
    sizes: dict[float | None, float] = {budget: 5 + step * index for index, budget in enumerate(budgets)}
    return sizes | {None: 11}


def _markers(points: Sequence[SupportPoint]) -> dict[Schedule, str]:
    """Schedules in ascending order of K, those without annealing last; a star for pure student rollouts."""
    schedules = sorted({_schedule(p) for p in points}, key=lambda schedule: schedule[1] or inf)
    blended = [schedule for schedule in schedules if schedule[0] != "vanilla"]
    markers = {schedule: MARKERS[index % len(MARKERS)] for index, schedule in enumerate(blended)}
    return markers | {schedule: VANILLA for schedule in schedules if schedule not in markers}


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
    return entries + [
        Line2D([], [], label=f"{KNOBS['epsilon']}={budget:g}", marker="o", markersize=size, **outline)
        for budget, size in sizes.items()
        if budget is not None
    ]


def _schedule_name(schedule: Schedule) -> str:
    method, warmup = schedule
    if method == "vanilla":
        return "vanilla OPD"
    return f"fixed {KNOBS['epsilon']}" if warmup is None else f"TRB $K$={warmup}"
