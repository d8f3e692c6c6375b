"""What the steps logged, as small multiples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.curves import Series
from analysis.figures.style import (
    NARROW,
    WIDTH,
    WINDOW,
    is_long,
    lettered,
    new_figure,
    plot_series,
    set_title,
    setting_label,
    shared_legend,
    styled,
    whole_steps,
)


@dataclass(frozen=True)
class Panel:
    """What a column of `metrics.jsonl` is called, and the factor to the unit it is shown in.

    `blended` quantities exist only while a trust region takes part in decoding.
    """

    title: str
    scale: float = 1
    blended: bool = False


# The behavior that samples, then what training sees of it.
BEHAVIOR: Mapping[str, Panel] = {
    "beta": Panel(r"mean $\beta^*$", blended=True),
    "teacher_feasible": Panel("teacher inside (%)", 100, blended=True),
    "behavior_kl": Panel(r"KL($\mu\,\Vert\,p$) (nats/token)", blended=True),
    "acceptance": Panel("acceptance (%)", 100, blended=True),
    "rounds_per_token": Panel("passes per token", blended=True),
    "replaced": Panel("tokens replaced (%)", 100),
}
TRAINING: Mapping[str, Panel] = {
    "support_mass_student": Panel("student mass $M$ (%)", 100),
    "support_mass_teacher": Panel("teacher mass $Q$ (%)", 100),
    "support_overlap": Panel("support overlap (%)", 100),
    "response_length": Panel("length (tokens)"),
    "truncated": Panel("truncated (%)", 100),
    "reward": Panel("correct (%)", 100),
}
PANELS: Mapping[str, Panel] = {**BEHAVIOR, **TRAINING}
STEP, BLENDED_STEP = "optimizer step", "blended step"


@styled()
def draw(columns: Mapping[str, Sequence[Series]], title: str, width: float = WIDTH) -> Figure:
    """A panel for each column of PANELS that some run has, what the behavior logs above what training sees.

    The quantities of blended steps have one axis of steps, and all others have one of all steps.
    """
    across = 3 if width >= NARROW else 2
    groups = [
        [name for name in names if any(any(line.curve.values()) for line in columns.get(name, ()))]
        for names in (BEHAVIOR, TRAINING)
    ]
    heights = [ceil(len(group) / across) for group in groups]
    figure = new_figure(width, 1.0 + 1.6 * max(1, sum(heights)))
    places = list(figure.subplots(max(1, sum(heights)), across, squeeze=False).flat)
    starts = (0, across * heights[0])
    shown = {
        name: places[start + place]
        for group, start in zip(groups, starts, strict=True)
        for place, name in enumerate(group)
    }
    order = {line.method: index for name in shown for index, line in enumerate(columns[name])}
    for name, axes in shown.items():
        _draw_panel(axes, PANELS[name], columns[name], order)
    for axes in places:
        if axes not in shown.values():
            axes.set_axis_off()
    for group in groups:
        _share_steps(group, shown, across)
    lettered(list(shown.values()))
    set_title(figure, title)
    long = any(is_long(line) for name in shown for line in columns[name])
    shared_legend(figure, shown.values(), f"Thick lines: {WINDOW}-step means." if long else None)
    return figure


def _share_steps(group: Sequence[str], shown: Mapping[str, Axes], across: int) -> None:
    """One range for the panels of a kind; an axis of steps has its name in the last row of a group."""
    for blended in (True, False):
        own = [name for name in group if PANELS[name].blended is blended]
        for name in own[1:]:
            shown[name].sharex(shown[own[0]])
        for name in own:
            whole_steps(shown[name])
            if name in group[-across:]:
                shown[name].set_xlabel(BLENDED_STEP if blended else STEP, fontsize=8)


def _draw_panel(axes: Axes, panel: Panel, lines: Sequence[Series], order: Mapping[str, int]) -> None:
    for line in lines:
        plot_series(axes, line, setting_label(line), panel.scale, order[line.method])
    axes.set_title(panel.title, fontsize=8)
    axes.ticklabel_format(axis="y", useOffset=False)
