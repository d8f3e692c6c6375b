"""Mean pass@1 over training (paper, "Early-Training Comparisons")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

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
from orchestrator.experiment.methods import REFERENCE

CAPTION = Caption(
    "Scores over training",
    "line charts over optimizer steps, a line for the best setting of each method: mean pass@1, and its difference "
    "to vanilla's",
    "Mean pass@1 over the setup's benchmarks at each evaluated checkpoint, for the best setting of each method, and "
    "its difference to vanilla's. The band around 0 is the standard deviation of vanilla's seeds.",
    "The settings were chosen by these scores, so the highest points are biased upward.",
)


@styled()
def draw(
    series: Sequence[Series], title: str, note: str | None = None, width: float = WIDTH
) -> Figure:
    """A line for each run that has a score: pass@1 in [0, 1], shown in per cent, with a band where
    there are seeds.

    Beside it the lines minus vanilla's, if vanilla has one. Runs that start from the supervised
    stage have no point at step 0, which is the untrained student; the note over the legend says so.
    """
    shown = [line for line in series if any(line.curve.values())]
    several = len({line.seeds for line in shown}) > 1
    vanilla = next((line for line in shown if line.method == REFERENCE and len(shown) > 1), None)
    figure = new_figure(width, 3.6 if width > 5 else 4.2)
    panels = figure.subplots(1, 1 if vanilla is None else 2, squeeze=False)[0]
    for index, line in enumerate(shown):
        label = setting_label(line) + (
            f", {line.seeds} seed{'s' if line.seeds > 1 else ''}" if several else ""
        )
        plot_series(panels[0], line, label, scale=100, index=index)
        if vanilla is not None:
            plot_series(panels[1], _minus(line, vanilla), label, scale=100, index=index)
    for axes in panels:
        whole_steps(axes)
        axes.set(xlabel=step_label(shown))
    panels[0].set_ylabel("mean pass@1 (%)")
    if vanilla is not None:
        panels[1].set_ylabel("minus vanilla (points)")
    if any(line.from_supervised for line in shown):
        note = " ".join(
            filter(None, [note, "Lines that start from the supervised stage have no step 0."])
        )
    set_title(figure if vanilla else panels[0], title)
    shared_legend(figure, [panels[0]], note)
    return figure


def _minus(line: Series, vanilla: Series) -> Series:
    """Differences of means at the steps that both have; vanilla's own line lies at 0, with its
    seeds around it.
    """
    curve = {}
    for step, values in line.curve.items():
        others = vanilla.curve.get(step)
        if values and others:
            own = values if line is vanilla else [fmean(values)]
            curve[step] = [value - fmean(others) for value in own]
    return replace(line, curve=curve)


def picture(data: SetupRuns) -> Picture:
    """The best setting of each family, vanilla among them."""
    name = f"trajectories-{data.name}"
    series = [curves.score_series(setting, data.untrained) for setting in data.best.values()]
    if not any(line.curve for line in series):
        return Picture(
            name, CAPTION, missing="no checkpoint has been evaluated on all benchmarks yet"
        )
    basis = scores_basis(series, data.chosen)
    return Picture(name, CAPTION, partial(draw, series, data.title, basis), basis=basis)
