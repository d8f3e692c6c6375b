"""Mean pass@1 over training (paper, "Early-Training Comparisons")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from matplotlib.figure import Figure

from analysis.facts import curves
from analysis.facts.curves import Series
from analysis.figures import panels, style
from analysis.figures.picture import Caption, Picture, SetupRuns
from orchestrator.experiment.methods import REFERENCE

CAPTION = Caption(
    "trajectories",
    "Scores over training",
    "line charts over optimizer steps, a line for the best setting of each method: mean pass@1, and its difference "
    "to vanilla's",
    "Mean pass@1 over the setup's benchmarks at each evaluated checkpoint, for the best setting of each method, and "
    "its difference to vanilla's. The band around 0 is the standard deviation of vanilla's seeds.",
    "The settings were chosen by these scores, so the highest points are biased upward.",
)
NO_STEP_0 = "Lines that start from the supervised stage have no step 0."


@style.styled()
def draw(
    series: Sequence[Series], title: str, note: str = "", width: float = style.WIDTH
) -> Figure:
    """A line for each setting that has a score: pass@1 in [0, 1], shown in per cent.

    A second panel has the lines minus vanilla's, if vanilla has one. Runs that start from the
    supervised stage have no point at step 0, which is the untrained student; the note over the
    legend says so.
    """
    lines = [line for line in series if line.has_values]
    # The legend counts seeds only where the settings differ in them.
    several = len({line.seeds for line in lines}) > 1
    vanilla = None
    if len(lines) > 1:
        vanilla = next((line for line in lines if line.method == REFERENCE), None)
    figure = style.new_figure(width, 3.6 if width > style.NARROW else 4.2)
    axes = figure.subplots(1, 1 if vanilla is None else 2, squeeze=False)[0]
    for index, line in enumerate(lines):
        label = style.setting_text(line.method, line.knobs)
        if several:
            label += f", {line.seeds} seed{'s' if line.seeds > 1 else ''}"
        panels.plot_series(axes[0], line, label, 100, index)
        if vanilla is not None:
            panels.plot_series(axes[1], _minus(line, vanilla), label, 100, index)
    axes[0].set_ylabel("mean pass@1 (%)")
    if vanilla is not None:
        axes[1].set_ylabel("minus vanilla (points)")
    for panel in axes:
        panels.step_axis(panel, lines)
    panels.set_title(axes[0] if vanilla is None else figure, title)
    if any(line.from_supervised for line in lines):
        note = f"{note} {NO_STEP_0}".lstrip()
    panels.shared_legend(figure, [axes[0]], note)
    return figure


def _minus(line: Series, vanilla: Series) -> Series:
    """Differences of means at the steps that both lines have.

    Vanilla's own line keeps its seeds: they lie around 0, and their spread is the band.
    """
    curve = {}
    for step, values in line.curve.items():
        others = vanilla.curve.get(step)
        if values and others:
            own = values if line is vanilla else [fmean(values)]
            curve[step] = [value - fmean(others) for value in own]
    return replace(line, curve=curve)


def picture(data: SetupRuns) -> Picture:
    """The best setting of each method, vanilla among them."""
    lines = [curves.score_series(setting, data.untrained) for setting in data.best.values()]
    if not any(line.curve for line in lines):
        missing = "no checkpoint has been evaluated on all benchmarks yet"
        return Picture(CAPTION, data.name, missing=missing)
    basis = data.scores_basis(lines)
    return Picture(CAPTION, data.name, partial(draw, lines, data.title, basis), basis)
