"""The style of all figures: fonts, colours, names of settings, lines with their spread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isnan, nan
from statistics import fmean, stdev
from string import ascii_lowercase
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from analysis.figures.curves import Curve, Series
from analysis.labels import method_label
from orchestrator.experiment.methods import METHODS

WIDTH = 7.2  # inches, unless another is asked for
NARROW = 5.0  # inches below which panels that stand side by side are stacked
DPI = 160
# Okabe–Ito: distinguishable with any kind of colour vision.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GRAY = "#767676"
OTHERS = (("#7A5195", "*"), ("#8C564B", "P"), ("#4D7C0F", "d"), ("#374151", "h"))
STUDENT, TEACHER = "#BBBBBB", "#C44E52"
# The palette of the paper's methods. Another method needs no entry: it gets one of OTHERS.
LOOKS = {
    "vanilla": (BLACK, "X"),
    "trust_region": (BLUE, "o"),
    "fixed_epsilon": (SKY, "p"),
    "veto": (PURPLE, "D"),
    "skd": (GREEN, "^"),
    "temperature_warmup": (ORANGE, "v"),
    "sft_warmup": (VERMILLION, "s"),
}
EPSILON = r"$\varepsilon$"  # a KL budget, of whatever method
MARKED_POINTS = 25  # lines with more points than this show some markers only
MARKERS_ON_LONG = 6
LONG = 100  # lines with more points than this are too jagged to compare
SPREAD = "±1 s.d. over seeds"
MARGIN = "95 % over problems, one run"
NOTE_LETTERS = 16  # of 8 pt on an inch
WINDOW = 11  # steps of their centred running mean

_SETTINGS: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#D8E2EC",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 5.5,
    "lines.markeredgecolor": "white",
    "lines.markeredgewidth": 0.6,
    "mathtext.fontset": "dejavusans",
    "pdf.fonttype": 42,
    "svg.hashsalt": "trb",
}


def styled() -> Any:
    """The settings that hold while a figure is drawn or written; a context and a decorator."""
    return rc_context(_SETTINGS)


def new_figure(width: float, height: float) -> Figure:
    """A figure of its own, in inches, that no global state keeps."""
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def knob_symbol(method: str, name: str) -> str:
    """A method's knob as mathtext: its symbol, or its name where it has none."""
    known = METHODS[method].knobs if method in METHODS else {}
    return known[name].symbol or name if name in known else name


def knob_text(method: str, name: str, value: float) -> str:
    """`ε₀=0.01` as mathtext."""
    return f"{knob_symbol(method, name)}={value:g}"


def setting_label(series: Series) -> str:
    """Method and knobs for a legend: `TRB ε₀=0.05, K=12`."""
    return setting_text(series.method, series.knobs)


def setting_text(method: str, knobs: Mapping[str, Any]) -> str:
    """`TRB ε₀=0.05, K=12`; a label that ends in the knob's symbol does not say it twice: `Fixed
    ε=0.01`.
    """
    label = method_label(method)
    if [knob_symbol(method, name) for name in knobs] == [EPSILON]:
        label = label.removesuffix("ε").rstrip()
    return f"{label} {', '.join(knob_text(method, name, value) for name, value in knobs.items())}".rstrip()


def look(method: str, index: int = 0) -> tuple[str, str]:
    """Colour and marker of a method, the same in every figure; those of unknown methods follow
    `index`.
    """
    return LOOKS.get(method, OTHERS[index % len(OTHERS)])


def shades(color: str, count: int) -> list[Any]:
    """`count` shades of one colour, from light to the colour itself, for lines in ascending order
    of a knob.
    """
    rgb = np.array(to_rgb(color))
    shares = [1.0] if count == 1 else [0.35 + 0.65 * index / (count - 1) for index in range(count)]
    return [tuple(1 - share * (1 - rgb)) for share in shares]


def lettered(axes: Sequence[Axes]) -> None:
    """Letters before the titles of panels, if there are several. Their titles must be texts of
    ours, not of users.
    """
    if len(axes) > 1:
        for letter, part in zip(ascii_lowercase, axes, strict=False):
            title = part.get_title()
            size = part.title.get_fontsize()
            part.set_title("")
            part.set_title(f"$\\bf{{{letter}}}$  {title}".rstrip(), loc="left", fontsize=size)


def set_title(target: Axes | Figure, text: str) -> None:
    """A title taken literally: setups are named by users, and a dollar sign is no formula."""
    title = (
        target.suptitle(text, fontsize=10) if isinstance(target, Figure) else target.set_title(text)
    )
    title.set_parse_math(False)


def step_label(series: Iterable[Series]) -> str:
    """Says so where lines are running means."""
    smoothed = any(is_long(line) for line in series)
    return f"optimizer step (thick: {WINDOW}-step mean)" if smoothed else "optimizer step"


def whole_steps(axes: Axes) -> None:
    """No ticks between steps."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 4, 5, 10]))


def plot_series(axes: Axes, series: Series, label: str, scale: float = 1.0, index: int = 0) -> None:
    """The mean over seeds as a line that breaks where there is no value, ±1 standard deviation as a
    band.

    A line of many points is drawn thin, under its running mean.
    """
    color, marker = look(series.method, index)
    steps, values = list(series.curve), list(series.curve.values())
    means = [scale * fmean(v) if v else nan for v in values]
    if is_long(series):
        axes.plot(steps, means, color=color, linewidth=0.6, alpha=0.35)
        means = running_mean(means)
    axes.plot(
        steps, means, label=label, color=color, marker=marker, markevery=_marked(values, index)
    )
    if any(len(v) > 1 for v in values):
        low, high = _band(series.curve, scale)
        axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0, label=SPREAD)


def is_long(series: Series) -> bool:
    """Whether a line is drawn with its running mean."""
    return sum(map(bool, series.curve.values())) > LONG


def running_mean(values: Sequence[float]) -> list[float]:
    """Mean of the values present within half a window on either side; nan stays nan."""
    half = WINDOW // 2
    means = []
    for place, value in enumerate(values):
        around = values[max(0, place - half) : place + half + 1]
        means.append(nan if isnan(value) else fmean(each for each in around if not isnan(each)))
    return means


def shared_legend(figure: Figure, axes: Iterable[Axes], note: str | None = None) -> None:
    """One legend below all panels, each label once, in as many columns as the width takes, under a
    `note`.
    """
    entries: dict[str, Any] = {}
    for part in axes:
        handles, labels = part.get_legend_handles_labels()
        entries |= {
            label: handle
            for label, handle in zip(labels, handles, strict=True)
            if label not in entries
        }
    for label in [
        label for label in entries if label in (SPREAD, MARGIN)
    ]:  # last, and of no line's own colour
        handle = entries.pop(label)
        band = isinstance(handle, PolyCollection)
        entries[label] = (
            Patch(facecolor=GRAY, alpha=0.3) if band else Line2D([], [], color=GRAY, linewidth=1)
        )
    if entries:
        columns = legend_columns(list(entries), figure.get_figwidth())
        title = "\n".join(wrap(note, int(figure.get_figwidth() * NOTE_LETTERS))) if note else None
        figure.legend(
            list(entries.values()), list(entries), loc="outside lower center", ncols=columns, title=title,
            title_fontproperties={"size": 8, "style": "italic"},
        )  # fmt: skip


def legend_columns(labels: Sequence[str], width: float) -> int:
    """How many columns of the longest label fit into `width` inches."""
    longest = max(
        len(label.replace("$", "").replace("\\varepsilon", "e").replace("\\tau", "t"))
        for label in labels
    )
    return max(1, min(len(labels), int(width / (0.5 + 0.068 * longest))))


def _marked(values: Sequence[list[float]], index: int) -> list[bool]:
    """Which points of a line carry its marker: all of a short one; of a long one some, and those
    that stand alone.

    Lines have theirs at different places, so that one does not hide the other.
    """
    present = [place for place, value in enumerate(values) if value]
    if len(present) <= MARKED_POINTS:
        return [True] * len(values)
    every = max(1, len(present) // MARKERS_ON_LONG)
    chosen = set(present[(index * every) // 3 % every :: every])
    return [alone or place in chosen for place, alone in enumerate(_alone(values))]


def _alone(values: Sequence[list[float]]) -> list[bool]:
    """Points without a neighbour, which a line alone would not show."""
    present = [False, *map(bool, values), False]  # values[i] stands at i + 1
    return [not (present[i] or present[i + 2]) for i in range(len(values))]


def _band(curve: Curve, scale: float) -> tuple[list[float], list[float]]:
    """Mean ± standard deviation where several seeds have a value."""
    ends = [
        (scale * (fmean(v) - stdev(v)), scale * (fmean(v) + stdev(v))) if len(v) > 1 else (nan, nan)
        for v in curve.values()
    ]
    return [low for low, _ in ends], [high for _, high in ends]
