"""What the steps logged, as small multiples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.curves import Series
from analysis.figures.style import (
    new_figure,
    plot_series,
    set_title,
    setting_label,
    shared_legend,
    step_label,
    styled,
    whole_steps,
)

COLUMNS = 3


@dataclass(frozen=True)
class Panel:
    """What a column of `metrics.jsonl` is called, and the factor to the unit it is shown in."""

    title: str
    scale: float = 1


PANELS: Mapping[str, Panel] = {
    "beta": Panel(r"mean $\beta^*$"),
    "teacher_feasible": Panel("teacher inside the ball (% of prefixes)", 100),
    "behavior_kl": Panel(r"realised KL($\mu\,\Vert\,p$) (nats/token)"),
    "acceptance": Panel("expected acceptance (%)", 100),
    "rounds_per_token": Panel("teacher passes per token"),
    "replaced": Panel("tokens replaced (%)", 100),
    "support_mass_student": Panel("student mass on support, $M$ (%)", 100),
    "support_mass_teacher": Panel("teacher mass on support, $Q$ (%)", 100),
    "support_overlap": Panel("overlap of supports (%)", 100),
    "response_length": Panel("response length (tokens)"),
    "truncated": Panel("truncated responses (%)", 100),
    "reward": Panel("correct rollouts (%)", 100),
}


@styled()
def draw(columns: Mapping[str, Sequence[Series]], title: str) -> Figure:
    """A panel for each column of PANELS that some run has, over the steps at which it was logged."""
    shown = [name for name in PANELS if any(any(line.curve.values()) for line in columns.get(name, ()))]
    rows = max(1, ceil(len(shown) / COLUMNS))
    figure = new_figure(7.2, 1.0 + 1.6 * rows)
    panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    order = {line.method: index for name in shown for index, line in enumerate(columns[name])}
    for name, axes in zip(shown, panels, strict=False):
        _draw_panel(axes, PANELS[name], columns[name], order)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    set_title(figure, title)
    label = step_label(line for name in shown for line in columns[name])
    for axes in panels[max(0, len(shown) - COLUMNS) : len(shown)]:
        axes.set_xlabel(label, fontsize=8)
    shared_legend(figure, panels[: len(shown)])
    return figure


def _draw_panel(axes: Axes, panel: Panel, lines: Sequence[Series], order: Mapping[str, int]) -> None:
    for line in lines:
        plot_series(axes, line, setting_label(line), panel.scale, order[line.method])
    whole_steps(axes)
    axes.set_title(panel.title, fontsize=8)
    axes.ticklabel_format(axis="y", useOffset=False)
