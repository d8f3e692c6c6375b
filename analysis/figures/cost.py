"""Mean pass@1 against the cost of training: updates, time, and tokens of the teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean, stdev

from matplotlib.figure import Figure

from analysis.costs import MEASURES
from analysis.figures.picture import Caption, Picture, SetupRuns
from analysis.figures.style import WIDTH, look, new_figure, set_title, shared_legend, styled
from analysis.labels import AVERAGE, BASE, method_label
from analysis.scores.equal_cost import CurvePoint, curve

CAPTION = Caption(
    "Scores against cost",
    "line charts of mean pass@1 over the cost of training, a panel for each way to count it and a line for each method",
    "Mean pass@1 of the best setting of each method at each evaluated checkpoint, over what training took by then, the "
    "supervised stage included. Methods compare at equal cost where a vertical line cuts their lines.",
    "Time is that of the machine as it was, with whatever ran beside it.",
)
AXES = {"updates": "updates", "time": "seconds of a GPU, or a core", "teacher_tokens": "tokens of the teacher"}

Lines = Mapping[str, Sequence[CurvePoint]]  # by method


@styled()
def draw(lines: Lines, title: str, width: float = WIDTH) -> Figure:
    """A panel for each cost that was logged for some method, with a band of ±1 standard deviation over seeds."""
    costs = [measure for measure in AXES if any(_known(points, measure) for points in lines.values())]
    figure = new_figure(width, 3.6)
    panels = figure.subplots(1, len(costs), sharey=True, squeeze=False)[0]
    for axes, measure in zip(panels, costs, strict=True):
        for index, (method, points) in enumerate(lines.items()):
            if not _known(points, measure):
                continue
            color, marker = look(method, index)
            amounts = [MEASURES[measure](point.cost) for point in points]
            by_seed = [[100 * float(score) for score in point.checkpoint.by_seed[AVERAGE]] for point in points]
            means, spreads = [fmean(scores) for scores in by_seed], [_spread(scores) for scores in by_seed]
            axes.plot(amounts, means, label=method_label(method), color=color, marker=marker)
            if any(spreads):
                low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
                high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
                axes.fill_between(amounts, low, high, color=color, alpha=0.15, linewidth=0)
        axes.set(xlabel=AXES[measure])
        axes.set_xlim(left=0)
    panels[0].set_ylabel("mean pass@1 (%)")
    set_title(figure, title)
    shared_legend(figure, panels)
    return figure


def picture(data: SetupRuns) -> Picture:
    """The chosen setting of each trained method."""
    name = f"cost-{data.name}"
    chosen = [selected.best for selected in data.chosen if selected.best.method != BASE]
    lines = {best.method: curve(data.study, best) for best in chosen}
    if not any(_known(points, "time") or _known(points, "teacher_tokens") for points in lines.values()):
        return Picture(name, CAPTION, missing="no method has an evaluated checkpoint whose time or tokens were logged")
    seeds = sorted({best.seeds for best in chosen})
    basis = f"Means over {' to '.join(map(str, {seeds[0]: 0, seeds[-1]: 0}))} seeds; bands: ±1 standard deviation."
    return Picture(name, CAPTION, partial(draw, lines, data.title), basis=basis if seeds[-1] > 1 else "One seed each.")


def _known(points: Sequence[CurvePoint], measure: str) -> bool:
    return bool(points) and all(MEASURES[measure](point.cost) is not None for point in points)


def _spread(scores: Sequence[float]) -> float:
    return stdev(scores) if len(scores) > 1 else 0.0
