"""Mean pass@1 over training (paper, "Early-Training Comparisons")."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.figure import Figure

from analysis.figures import curves
from analysis.figures.curves import Series
from analysis.figures.picture import Caption, Picture, SetupRuns, scores_basis
from analysis.figures.style import (
    WIDTH,
    new_figure,
    plot_series,
    set_title,
    setting_label,
    shared_legend,
    step_label,
    styled,
    whole_steps,
)

CAPTION = Caption(
    "Scores over training",
    "line chart of mean pass@1 over optimizer steps, a line for the best setting of each method",
    "Mean pass@1 over the setup's benchmarks at each evaluated checkpoint, for the best setting of each method.",
    "The settings were chosen by these scores, so the highest points are biased upward.",
)


@styled()
def draw(series: Sequence[Series], title: str, note: str | None = None, width: float = WIDTH) -> Figure:
    """A line for each run that has a score: pass@1 in [0, 1], shown in per cent, with a band where there are seeds.

    Runs that start from the supervised stage have no point at step 0, which is the untrained student; the legend
    says so. The `note` stands over the legend.
    """
    shown = [line for line in series if any(line.curve.values())]
    several = len({line.seeds for line in shown}) > 1
    figure = new_figure(width, 4.2 if width > 5 else 4.6)
    axes = figure.subplots()
    for index, line in enumerate(shown):
        label = setting_label(line) + (f", {line.seeds} seed{'s' if line.seeds > 1 else ''}" if several else "")
        label += " (after SFT: no step 0)" if line.from_supervised else ""
        plot_series(axes, line, label, scale=100, index=index)
    set_title(axes, title)
    whole_steps(axes)
    axes.set(xlabel=step_label(shown), ylabel="mean pass@1 (%)")
    shared_legend(figure, [axes], note)
    return figure


def picture(data: SetupRuns) -> Picture:
    """The best setting of each family, vanilla among them."""
    name = f"trajectories-{data.name}"
    series = [curves.score_series(setting, data.untrained) for setting in data.best.values()]
    if not any(line.curve for line in series):
        return Picture(name, CAPTION, missing="no checkpoint has been evaluated on all benchmarks yet")
    basis = scores_basis(series, data.chosen)
    return Picture(name, CAPTION, partial(draw, series, data.title, basis), basis=basis)
