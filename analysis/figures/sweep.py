"""Best-over-training scores over the grids (paper, "Extended Results")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.curves import SeedMean
from analysis.figures.style import (
    KNOBS,
    LOOKS,
    ORDERED,
    SPREAD,
    knob_text,
    new_figure,
    set_title,
    shared_legend,
    styled,
)

SMALL = 0.9  # width of a panel with one line, relative to the others
DODGE = 0.07  # share of the distance between two ticks, so that error bars of one tick stand side by side
CROWDED = 26  # letters under an axis from which on they are turned


@dataclass(frozen=True)
class Panel:
    """The grid of one method: value of knob `line` → value of knob `x` → score in [0, 1], None where missing.

    Without a second knob `line` is None and so is the key of its only line.
    """

    method: str
    title: str
    x: str
    line: str | None
    lines: Mapping[float | None, Mapping[float, SeedMean | None]]


@styled()
def draw(panels: Sequence[Panel], vanilla: SeedMean | None, title: str) -> Figure:
    """A panel for each method on one scale of per cent, vanilla as a dashed line; bars where seeds give a spread."""
    figure = new_figure(1.2 + 2 * len(panels), 3.4)
    widths = [SMALL if panel.line is None else 1 for panel in panels]
    row = figure.subplots(1, len(panels), squeeze=False, sharey=True, width_ratios=widths)[0]
    for axes, panel in zip(row, panels, strict=True):
        _draw_panel(axes, panel)
        if vanilla is not None:
            _draw_vanilla(axes, vanilla)
    row[0].set_ylabel("best mean pass@1 (%)")
    set_title(figure, title)
    shared_legend(figure, row)
    return figure


def _draw_panel(axes: Axes, panel: Panel) -> None:
    ticks = _ticks(panel)
    for index, (value, scores) in enumerate(panel.lines.items()):
        color, marker = LOOKS[panel.method] if value is None else ORDERED[index % len(ORDERED)]
        label = f"{panel.title} {knob_text(panel.line, value)}" if panel.line and value is not None else panel.title
        shift = DODGE * (index - (len(panel.lines) - 1) / 2)
        _draw_line(axes, ticks, scores, shift, {"color": color, "marker": marker, "label": label})
    shown = [f"{tick:g}" for tick in ticks]
    axes.set_xticks(range(len(ticks)), shown, rotation=90 if len("".join(shown)) > CROWDED else 0)
    axes.set_xlim(-0.5, len(ticks) - 0.5)
    axes.grid(visible=False, axis="x")
    axes.set(title=panel.title, xlabel=KNOBS.get(panel.x, panel.x))


def _draw_vanilla(axes: Axes, score: SeedMean) -> None:
    color = LOOKS["vanilla"][0]
    axes.axhline(100 * score.mean, color=color, linestyle="--", linewidth=1.2, label="vanilla OPD")
    if score.spread is not None:
        low, high = (100 * (score.mean + side * score.spread) for side in (-1, 1))
        axes.axhspan(low, high, color=color, alpha=0.08, linewidth=0)


def _draw_line(
    axes: Axes, ticks: list[float], scores: Mapping[float, SeedMean | None], shift: float, look: dict[str, Any]
) -> None:
    """The line breaks where a setting has no score."""
    found = [scores.get(tick) for tick in ticks]
    xs = [place + shift for place in range(len(ticks))]
    axes.plot(xs, [nan if score is None else 100 * score.mean for score in found], **look)
    for x, score in zip(xs, found, strict=True):
        if score is not None and score.spread is not None:
            low, high = (100 * (score.mean + side * score.spread) for side in (-1, 1))
            axes.vlines(x, low, high, color=look["color"], linewidth=1, label=SPREAD)


def _ticks(panel: Panel) -> list[float]:
    """The knob's values in order, evenly spaced on the axis."""
    return sorted({x for scores in panel.lines.values() for x in scores})
