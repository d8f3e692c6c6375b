"""Mean pass@1 against the cost of training: updates, time, and tokens of the teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.figure import Figure

from analysis.costs import MEASURES
from analysis.figures.curves import Curve, Series
from analysis.figures.picture import Caption, Picture, SetupRuns, scores_basis
from analysis.figures.style import (
    WIDTH,
    new_figure,
    plot_series,
    set_title,
    setting_label,
    shared_legend,
    styled,
)
from analysis.labels import AVERAGE, BASE
from analysis.scores.equal_cost import CurvePoint, curve, incomparable

CAPTION = Caption(
    "Scores against cost",
    "line charts of mean pass@1 over the cost of training, a panel for each way to count it and a line for each method",
    "Mean pass@1 of the best setting of each method at each evaluated checkpoint, over what training took by then, the "
    "supervised stage included. Methods compare at equal cost where a vertical line cuts their lines.",
    "Time is that of the machine as it was, with whatever ran beside it; a method on other hardware than vanilla's has "
    "no line there.",
)
AXES = {
    "updates": "updates",
    "time": "seconds of a GPU, or a core",
    "teacher_tokens": "tokens of the teacher",
}


@styled()
def draw(panels: Mapping[str, Sequence[Series]], title: str, width: float = WIDTH) -> Figure:
    """A panel for each measure of `AXES` that has lines: pass@1 in [0, 1], shown in per cent, over
    the cost.
    """
    figure = new_figure(width, 3.6)
    axes_of = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (measure, lines) in zip(axes_of, panels.items(), strict=True):
        for index, line in enumerate(lines):
            plot_series(axes, line, setting_label(line), scale=100, index=index)
        axes.set(xlabel=AXES[measure])
        axes.set_xlim(left=0)
    axes_of[0].set_ylabel("mean pass@1 (%)")
    set_title(figure, title)
    shared_legend(figure, axes_of)
    return figure


def picture(data: SetupRuns) -> Picture:
    """The chosen setting of each trained method, in a panel for each cost that was logged."""
    name = f"cost-{data.name}"
    chosen = [selected.best for selected in data.chosen if selected.best.method != BASE]
    curves = {best.method: curve(data.study, best) for best in chosen}
    panels: dict[str, list[Series]] = {}
    for measure in AXES:
        left_out = incomparable(data.study, curves, measure)
        lines = [
            series(points, measure) for method, points in curves.items() if method not in left_out
        ]
        panels |= {measure: lines} if lines else {}
    if panels.keys() <= {"updates"}:
        return Picture(
            name,
            CAPTION,
            missing="no method has an evaluated checkpoint whose time or tokens were logged",
        )
    basis = scores_basis(panels["updates"], data.chosen)
    return Picture(name, CAPTION, partial(draw, panels, data.title), basis=basis)


def series(points: Sequence[CurvePoint], measure: str) -> Series:
    """The scores of each seed over a cost that was logged."""
    found: Curve = {}
    for point in points:
        amount = MEASURES[measure](point.cost)
        assert amount is not None, "a cost that was not logged has no line"
        found[amount] = list(map(float, point.checkpoint.by_seed[AVERAGE]))
    best = points[0].checkpoint
    return Series(best.method, best.knobs, found)
