"""Logged diagnostics of training steps as small multiples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.facts import curves
from analysis.facts.curves import Series
from analysis.figures import panels, style
from analysis.figures.picture import COMPARED, Caption, Picture, SetupRuns
from orchestrator.records.log import COLUMNS, Column, Steps

# SKD samples by another law than a blend, so only its share of replaced tokens is shown.
INJECTION = "skd"
CAPTION = Caption(
    "diagnostics",
    "What the steps logged",
    "small line charts over optimizer steps, one for each logged quantity",
    "Logged quantities of vanilla, of the best trust-region setting and of the best SKD setting. A line ends where "
    "a run no longer has the quantity, as after the warmup.",
    "They describe the batches a run trained on, not held-out problems; the batches differ in what was sampled.",
)

PANELS: Mapping[str, Column] = {key: column for key, column in COLUMNS.items() if column.figure}
# Quantities of the behavior policy while it samples, and of the training on its samples.
BEHAVIOR = [
    key for key, column in PANELS.items() if column.logged in (Steps.BLENDED, Steps.MEASURED)
]
TRAINING = [key for key in PANELS if key not in BEHAVIOR]
REPLACED = "replaced"  # SKD replaces tokens at every step, so the panel has the axis of all steps


@style.styled()
def draw(columns: Mapping[str, Sequence[Series]], title: str, width: float = style.WIDTH) -> Figure:
    """A panel for each column of PANELS that some run has, the behavior's above those of training.

    The quantities of blended steps have one axis of steps, and all others have one of all steps.
    """
    across = 3 if width >= style.NARROW else 2
    groups: list[list[str]] = [[], []]
    smoothed = False
    for name in PANELS:
        lines = columns.get(name, ())
        if any(line.has_values for line in lines):
            groups[name in TRAINING].append(name)
            smoothed = smoothed or any(map(panels.is_long, lines))
    heights = [ceil(len(group) / across) for group in groups]
    figure = style.new_figure(width, 1.0 + 1.6 * max(1, sum(heights)))
    places = list(figure.subplots(max(1, sum(heights)), across, squeeze=False).flat)
    # Each group begins a row of its own, so the last row of the first one may have places left.
    shown = dict(zip(groups[0], places, strict=False))
    shown |= zip(groups[1], places[across * heights[0] :], strict=False)
    for axes in places:
        axes.set_axis_off()
    for name, axes in shown.items():
        axes.set_axis_on()
        panels.plot_all(axes, columns[name], PANELS[name].factor)
        axes.set_title(PANELS[name].figure, fontsize=8)
        axes.ticklabel_format(axis="y", useOffset=False)
    for group in groups:
        _share_steps(group, shown, across)
    panels.lettered(list(shown.values()))
    panels.set_title(figure, title)
    note = f"Thick lines: {panels.WINDOW}-step means." if smoothed else None
    panels.shared_legend(figure, shown.values(), note)
    return figure


def _share_steps(group: Sequence[str], shown: Mapping[str, Axes], across: int) -> None:
    """Give panels of a kind one range of steps; the last row of a group names the axis."""
    first: dict[str, Axes] = {}
    for name in group:
        blended = name in BEHAVIOR and name != REPLACED
        label = "blended step" if blended else "optimizer step"
        axes = shown[name]
        if label in first:
            axes.sharex(first[label])
        first.setdefault(label, axes)
        panels.whole_steps(axes)
        if name in group[-across:]:
            axes.set_xlabel(label, fontsize=8)


def picture(data: SetupRuns) -> Picture:
    """Draw the diagnostics of vanilla, the best trust-region setting and the best SKD setting."""
    columns: dict[str, list[Series]] = {key: [] for key in PANELS}
    seeds = 0
    for setting in data.best_of([*COMPARED, INJECTION]):
        keys = [REPLACED] if setting.method == INJECTION else list(PANELS)
        for key, line in curves.metric_series(data.study, setting, keys).items():
            columns[key].append(line)
            seeds = max(seeds, line.seeds)
    if not seeds:
        missing = "no step of vanilla, skd or the chosen trust_region run has been logged yet"
        return Picture(CAPTION, data.name, missing=missing)
    bands = f"Means over {seeds} seeds with bands of ±1 standard deviation."
    basis = bands if seeds > 1 else "One seed each."
    return Picture(CAPTION, data.name, partial(draw, columns, data.title), basis)
