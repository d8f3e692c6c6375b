"""Logged diagnostics of training steps as small multiples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import curves
from analysis.figures.curves import Series
from analysis.figures.picture import COMPARED, Caption, Picture, SetupRuns
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
from orchestrator.records.columns import COLUMNS, Column, Steps

# Of SKD the diagnostics show the replaced tokens alone: its law is another one, and so are its
# numbers.
INJECTION = "skd"
CAPTION = Caption(
    "What the steps logged",
    "small line charts over optimizer steps, one for each logged quantity",
    "Logged quantities of vanilla, of the best trust-region setting and of the best SKD setting. A line ends where "
    "a run no longer has the quantity, as after the warmup.",
    "They describe the batches a run trained on, not held-out problems; the batches differ in what was sampled.",
)

PANELS: Mapping[str, Column] = {key: column for key, column in COLUMNS.items() if column.figure}
# The behavior that samples, then what training sees of it.
BEHAVIOR = [
    key for key, column in PANELS.items() if column.logged in (Steps.BLENDED, Steps.MEASURED)
]
TRAINING = [key for key in PANELS if key not in BEHAVIOR]
REPLACED = "replaced"  # of SKD, which injects at every step: its panel has the axis of all steps
STEP, BLENDED_STEP = "optimizer step", "blended step"


@styled()
def draw(columns: Mapping[str, Sequence[Series]], title: str, width: float = WIDTH) -> Figure:
    """A panel for each column of PANELS that some run has, what the behavior logs above what
    training sees.

    The quantities of blended steps have one axis of steps, and all others have one of all steps.
    """
    across = 3 if width >= NARROW else 2
    filled = {name for name, lines in columns.items() if any(_has_values(line) for line in lines)}
    groups = [[name for name in names if name in filled] for names in (BEHAVIOR, TRAINING)]
    heights = [ceil(len(group) / across) for group in groups]
    figure = new_figure(width, 1.0 + 1.6 * max(1, sum(heights)))
    places = list(figure.subplots(max(1, sum(heights)), across, squeeze=False).flat)
    # Each group begins a row of its own, so the last row of the first one may have places left.
    panels = dict(zip(groups[0], places, strict=False))
    panels |= zip(groups[1], places[across * heights[0] :], strict=False)
    order: dict[
        str, int
    ] = {}  # method → which of the look's variants its lines have, the same in all panels
    for name in panels:
        order |= {line.method: index for index, line in enumerate(columns[name])}
    for name, axes in panels.items():
        for line in columns[name]:
            plot_series(axes, line, setting_label(line), PANELS[name].factor, order[line.method])
        axes.set_title(PANELS[name].figure, fontsize=8)
        axes.ticklabel_format(axis="y", useOffset=False)
    for axes in places:
        if axes not in panels.values():
            axes.set_axis_off()
    for group in groups:
        _share_steps(group, panels, across)
    lettered(list(panels.values()))
    set_title(figure, title)
    smoothed = any(is_long(line) for name in panels for line in columns[name])
    shared_legend(
        figure, panels.values(), f"Thick lines: {WINDOW}-step means." if smoothed else None
    )
    return figure


def _has_values(line: Series) -> bool:
    """Whether some step of a run has the quantity."""
    return any(line.curve.values())


def _share_steps(group: Sequence[str], panels: Mapping[str, Axes], across: int) -> None:
    """One range for the panels of a kind; an axis of steps has its name in the last row of a group."""
    for blended in (True, False):
        alike = [name for name in group if (name in BEHAVIOR and name != REPLACED) is blended]
        for name in alike[1:]:
            panels[name].sharex(panels[alike[0]])
        for name in alike:
            whole_steps(panels[name])
            if name in group[-across:]:
                panels[name].set_xlabel(BLENDED_STEP if blended else STEP, fontsize=8)


def picture(data: SetupRuns) -> Picture:
    """Draw the diagnostics of vanilla, the best trust-region setting and the best SKD setting."""
    name = f"diagnostics-{data.name}"
    rows = [
        curves.metric_series(data.study, setting, list(PANELS))
        for setting in data.best_of(COMPARED)
    ]
    rows += [
        curves.metric_series(data.study, setting, [REPLACED])
        for setting in data.best_of([INJECTION])
    ]
    if not any(rows):
        return Picture(
            name,
            CAPTION,
            missing="no step of vanilla, skd or the chosen trust_region run has been logged yet",
        )
    columns: dict[str, list[Series]] = {key: [] for key in PANELS}
    for row in rows:
        for key, line in row.items():
            columns[key].append(line)
    seeds = max(line.seeds for row in rows for line in row.values())
    basis = (
        f"Means over {seeds} seeds with bands of ±1 standard deviation."
        if seeds > 1
        else "One seed each."
    )
    return Picture(name, CAPTION, partial(draw, columns, data.title), basis=basis)
