"""Best-over-training scores over the grids (paper, "Extended Results")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil, nan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import curves
from analysis.figures.curves import Grid, SeedMean
from analysis.figures.picture import Caption, Picture, SetupRuns
from analysis.figures.style import (
    MARGIN,
    SPREAD,
    WIDTH,
    knob_symbol,
    knob_text,
    lettered,
    look,
    new_figure,
    set_title,
    setting_text,
    shades,
    shared_legend,
    styled,
)
from analysis.labels import method_label
from orchestrator.experiment.methods import REFERENCE

CAPTION = Caption(
    "Best score over the grids",
    "panels of best mean pass@1 over the hyperparameters of each method, vanilla as a dashed line",
    "The best checkpoint of each hyperparameter setting; methods with a single one share a panel. The dashed line "
    "is vanilla's best, shaded as far as its own bar would reach.",
    "Each point is a maximum over checkpoints, of noisy scores. Settings beside each other may differ by chance.",
)

PANEL_WIDTH = 1.8  # inches, at least
DODGE = 0.07  # share of the distance between two ticks, so that error bars of one tick stand side by side
CROWDED = 9  # letters on an inch of an axis from which on they are turned


@styled()
def draw(
    grids: Sequence[Grid], vanilla: SeedMean | None, title: str, width: float = WIDTH
) -> Figure:
    """A panel for each grid on one scale of per cent, and one for all methods that have a single
    setting.

    Vanilla is a dashed line across all panels. Bars are the standard deviation over seeds; of one
    seed, the 95 % interval over the problems. At least one grid has several settings.
    """
    several = [grid for grid in grids if grid.x is not None]
    single = [grid for grid in grids if grid.x is None]
    count = len(several) + bool(single)
    columns = min(count, max(1, int(width / PANEL_WIDTH)))
    rows = ceil(count / columns)
    figure = new_figure(width, 1.2 + 2.2 * rows)
    panels = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for axes, grid in zip(panels, several, strict=False):
        _draw_grid(axes, grid, grids.index(grid), width / columns)
    if single:
        _draw_single(panels[len(several)], single, grids)
    for axes in panels[:count]:
        axes.grid(visible=False, axis="x")
        if vanilla is not None:
            _draw_vanilla(axes, vanilla)
    for axes in panels[count:]:
        axes.set_axis_off()
    figure.supylabel("best mean pass@1 (%)", fontsize=9)
    lettered(panels[:count])
    set_title(figure, title)
    shared_legend(figure, panels[:count])
    return figure


def _draw_grid(axes: Axes, grid: Grid, index: int, inches: float) -> None:
    assert grid.x is not None
    ticks = sorted({value for line in grid.lines.values() for value in line})
    color, marker = look(grid.method, index)
    line_shades = list(shades(color, len(grid.lines)))
    for place, (knobs, scores) in enumerate(grid.lines.items()):
        label = setting_text(grid.method, dict(knobs))
        # Lines stand beside each other at a tick, so that their error bars do not cover one
        # another.
        shift = DODGE * (place - (len(grid.lines) - 1) / 2)
        _draw_line(
            axes,
            ticks,
            scores,
            shift,
            {"color": line_shades[place], "marker": marker, "label": label},
        )
    shown = [f"{tick:g}" for tick in ticks]
    axes.set_xticks(
        range(len(ticks)), shown, rotation=90 if len("".join(shown)) > CROWDED * inches else 0
    )
    axes.set_xlim(-0.5, len(ticks) - 0.5)
    fixed = ", ".join(knob_text(grid.method, *knob) for knob in grid.fixed.items())
    symbol = knob_symbol(grid.method, grid.x)
    axes.set(
        title=method_label(grid.method), xlabel=f"{symbol}   (at {fixed})" if fixed else symbol
    )


def _draw_single(axes: Axes, single: Sequence[Grid], grids: Sequence[Grid]) -> None:
    """A point for each method, which the legend names with its setting."""
    for place, grid in enumerate(single):
        color, marker = look(grid.method, grids.index(grid))
        (scores,) = grid.lines.values()
        label = setting_text(grid.method, grid.fixed)
        _draw_line(axes, [0], scores, place, {"color": color, "marker": marker, "label": label})
    axes.set_xticks([])
    axes.set_xlim(-0.7, len(single) - 0.3)
    axes.set(title="single settings", xlabel="in the legend's order")


def _draw_vanilla(axes: Axes, score: SeedMean) -> None:
    color = look(REFERENCE)[0]
    axes.axhline(
        100 * score.mean, color=color, linestyle="--", linewidth=1.2, label=method_label(REFERENCE)
    )
    if score.reach is not None:
        low, high = (100 * (score.mean + side * score.reach) for side in (-1, 1))
        axes.axhspan(low, high, color=color, alpha=0.08, linewidth=0)


def _draw_line(
    axes: Axes,
    ticks: Sequence[float],
    scores: Mapping[float, SeedMean | None],
    shift: float,
    look: dict[str, Any],
) -> None:
    """The line breaks where a setting has no score; a single point has no line, on the page and in
    the legend.
    """
    at_ticks = [scores.get(tick) for tick in ticks]
    xs = [place + shift for place in range(len(ticks))]
    means = [nan if score is None else 100 * score.mean for score in at_ticks]
    style = "-" if len([score for score in at_ticks if score is not None]) > 1 else "none"
    axes.plot(xs, means, linestyle=style, **look)
    for x, score in zip(xs, at_ticks, strict=True):
        if score is not None and score.reach is not None:
            low, high = (100 * (score.mean + side * score.reach) for side in (-1, 1))
            name = MARGIN if score.spread is None else SPREAD
            axes.vlines(x, low, high, color=look["color"], linewidth=1, label=name)


def picture(data: SetupRuns) -> Picture:
    """Best-over-training scores over the grids of all methods; those of a single setting share a
    panel.
    """
    name = f"sweep-{data.name}"
    methods = dict.fromkeys(
        setting.method for setting in data.settings if setting.method != REFERENCE
    )
    grids = [curves.method_grid(data.family(method), data.candidates(method)) for method in methods]
    scored = [grid for grid in grids if grid.scored]
    if not any(grid.x for grid in scored):
        return Picture(
            name, CAPTION, missing="no method that has several settings has been evaluated yet"
        )
    vanilla = curves.best_over_training(data.candidates(REFERENCE), {})
    basis = "Bars of several seeds: ±1 standard deviation; of one seed: 95 % interval over the problems, normal."
    return Picture(name, CAPTION, partial(draw, scored, vanilla, data.title), basis=basis)
