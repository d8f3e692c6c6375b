"""Mean pass@1 against the cost of training: updates and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.figure import Figure

from analysis.costs import MEASURES
from analysis.facts.curves import Series
from analysis.facts.equal_cost import CurvePoint, curve, incomparable
from analysis.figures import panels, style
from analysis.figures.picture import Caption, Picture, SetupRuns
from analysis.labels import AVERAGE, BASE

CAPTION = Caption(
    "cost",
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
}


@style.styled()
def draw(
    by_measure: Mapping[str, Sequence[Series]], title: str, width: float = style.WIDTH
) -> Figure:
    """A panel for each measure of `AXES` that has lines: pass@1 in [0, 1], shown in per cent."""
    figure = style.new_figure(width, 3.6)
    axes = figure.subplots(1, len(by_measure), sharey=True, squeeze=False)[0]
    for panel, (measure, lines) in zip(axes, by_measure.items(), strict=True):
        panels.plot_all(panel, lines, 100)
        panel.set_xlabel(AXES[measure])
        panel.set_xlim(left=0)
    axes[0].set_ylabel("mean pass@1 (%)")
    panels.set_title(figure, title)
    panels.shared_legend(figure, axes)
    return figure


def picture(data: SetupRuns) -> Picture:
    """The selected setting of each trained method, in a panel for each cost that was logged."""
    points_of: dict[str, Sequence[CurvePoint]] = {}
    for selected in data.chosen:
        if selected.best.method != BASE:
            points_of[selected.best.method] = curve(data.study, selected.best)
    by_measure: dict[str, list[Series]] = {}
    for measure in AXES:
        left_out = incomparable(data.study, points_of, measure)
        for method, points in points_of.items():
            if method not in left_out:
                by_measure.setdefault(measure, []).append(series(points, measure))
    # Over updates alone the panel would repeat the trajectories.
    if by_measure.keys() <= {"updates"}:
        missing = "no method has an evaluated checkpoint whose time was logged"
        return Picture(CAPTION, data.name, missing=missing)
    basis = data.scores_basis(by_measure["updates"])
    return Picture(CAPTION, data.name, partial(draw, by_measure, data.title), basis)


def series(points: Sequence[CurvePoint], measure: str) -> Series:
    """The scores of each seed over a cost that was logged."""
    scores = {}
    for point in points:
        amount = MEASURES[measure](point.cost)
        assert amount is not None, "a cost that was not logged has no line"
        scores[amount] = list(map(float, point.checkpoint.by_seed[AVERAGE]))
    best = points[0].checkpoint
    return Series(best.method, best.knobs, scores)
