"""Mean pass@1 over training (paper, "Early-Training Comparisons")."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from analysis.curves import Series
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


@styled()
def draw(series: Sequence[Series], title: str) -> Figure:
    """A line for each run that has a score: pass@1 in [0, 1], shown in per cent.

    Runs that start from the supervised stage have no point at step 0, which is the untrained student; the legend
    says so.
    """
    figure = new_figure(WIDTH, 4.2)
    axes = figure.subplots()
    for index, line in enumerate(series):
        if any(line.curve.values()):
            note = " (after SFT: no step 0)" if line.from_supervised else ""
            plot_series(axes, line, setting_label(line) + note, scale=100, index=index)
    set_title(axes, title)
    whole_steps(axes)
    axes.set(xlabel=step_label(series), ylabel="mean pass@1 (%)")
    shared_legend(figure, [axes])
    return figure
