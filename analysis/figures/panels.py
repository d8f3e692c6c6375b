"""The parts that figures draw alike: style, lines with their spread, bars, axes, titles, legends."""

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

from analysis.facts.curves import Series
from analysis.labels import method_label
from orchestrator.experiment.axes import RATE, value_text
from orchestrator.experiment.methods import METHODS

# --- sizes, colours, markers and the names of settings ---

WIDTH = 7.2  # inches, unless another is asked for
NARROW = 5.0  # inches below which panels that stand side by side are stacked
DPI = 160
# Okabe–Ito: distinguishable with any kind of colour vision.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GRAY = "#767676"
STUDENT, TEACHER = "#BBBBBB", "#C44E52"
# Colour and marker of the paper's methods. Another method needs no entry: the lists below give it a pair.
STYLES = {
    "vanilla": (BLACK, "X"),
    "trust_region": (BLUE, "o"),
    "fixed_epsilon": (SKY, "p"),
    "veto": (PURPLE, "D"),
    "skd": (GREEN, "^"),
    "temperature_warmup": (ORANGE, "v"),
    "sft_warmup": (VERMILLION, "s"),
}
# Other methods go round seven colours and six markers, which makes 42 pairs.
OTHER_COLORS = ("#7A5195", "#8C564B", "#4D7C0F", "#374151", "#B45309", "#0F766E", "#BE185D")
OTHER_MARKERS = ("*", "P", "d", "h", "<", ">")
EPSILON = r"$\varepsilon$"  # a KL budget, of any method

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
    """Matplotlib's settings while a figure is drawn or written, as a context or a decorator."""
    return rc_context(_SETTINGS)


def new_figure(width: float, height: float) -> Figure:
    """A figure of a size in inches. Without pyplot no global state keeps it alive."""
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def method_style(method: str, index: int = 0) -> tuple[str, str]:
    """Colour and marker of a method, the same in every figure.

    `index` chooses a pair for methods that STYLES lacks.
    """
    other = OTHER_COLORS[index % len(OTHER_COLORS)], OTHER_MARKERS[index % len(OTHER_MARKERS)]
    return STYLES.get(method, other)


def shades(color: str, count: int) -> list[Any]:
    """`count` shades, from light to the colour itself, for lines in ascending order of a knob."""
    rgb = np.array(to_rgb(color))
    shares = np.linspace(0.35, 1.0, count) if count > 1 else [1.0]
    return [tuple(1 - share * (1 - rgb)) for share in shares]


def knob_symbol(method: str, name: str) -> str:
    """A method's knob, or an axis, as mathtext: its symbol, or its name where it has none."""
    if name == RATE:
        return r"$\eta$"
    known = METHODS[method].knobs if method in METHODS else {}
    symbol = known[name].symbol if name in known else ""
    return symbol or name.rpartition(".")[-1]


def knob_texts(method: str, knobs: Mapping[str, Any]) -> str:
    """`ε₀=0.05, K=12` as mathtext."""
    texts = (f"{knob_symbol(method, name)}={value_text(knobs[name])}" for name in knobs)
    return ", ".join(texts)


def setting_text(method: str, knobs: Mapping[str, Any]) -> str:
    """Method and knobs for a legend: `TRB ε₀=0.05, K=12`.

    A label that ends in the knob's symbol does not repeat it: `Fixed ε=0.01`.
    """
    label = method_label(method)
    if [knob_symbol(method, name) for name in knobs] == [EPSILON]:
        label = label.removesuffix("ε").rstrip()
    return f"{label} {knob_texts(method, knobs)}".rstrip()


# --- the colours of leads ---

LEADS = "RdBu"  # a colour map: behind, level, ahead
LEAST_SPAN, MOST_SPAN = 3.0, 10.0  # points at which its colours end
DARK = 0.6  # share of the span from which letters are white


def color_leads(axes: Axes, leads: np.ndarray) -> tuple[float, list[list[str]]]:
    """Colour a cell for each lead in points, none where it is nan.

    Returns the points at which the colours end on either side, and the colour of each cell's
    letters: the colours are dark at both ends.
    """
    known = np.abs(leads[~np.isnan(leads)])
    span = min(MOST_SPAN, max(LEAST_SPAN, float(known.max(initial=0.0))))
    axes.imshow(leads, cmap=LEADS, vmin=-span, vmax=span, aspect="auto")
    axes.grid(visible=False)
    # A missing lead compares as false.
    letters = np.where(np.abs(leads) > DARK * span, "white", BLACK)
    return span, letters.tolist()


# --- lines ---

MARKED_POINTS = 25  # lines with more points than this show some markers only
MARKERS_ON_LONG = 6
LONG = 100  # lines with more points than this are too jagged to compare without a running mean
WINDOW = 11  # steps of their centred running mean
SPREAD = "±1 s.d. over seeds"
MARGIN = "95 % over problems, one run"
NOTE_LETTERS = 16  # of 8 pt on an inch


def plot_all(axes: Axes, lines: Iterable[Series], scale: float = 1.0) -> None:
    """The lines of a panel, named by their settings."""
    for index, line in enumerate(lines):
        plot_series(axes, line, setting_text(line.method, line.knobs), scale, index)


def plot_series(
    axes: Axes,
    series: Series,
    label: str,
    scale: float = 1.0,
    index: int = 0,
    shade: Any = None,
) -> None:
    """The mean over seeds as a line, with ±1 standard deviation as a band.

    The line breaks where a step has no value. A line of many points is drawn thin, under its
    running mean. A `shade` takes the place of the method's own colour.
    """
    color, marker = method_style(series.method, index)
    color = shade or color
    steps, means, low, high = list(series.curve), list[float](), list[float](), list[float]()
    for values in series.curve.values():
        mean = fmean(values) if values else nan
        spread = stdev(values) if len(values) > 1 else nan
        means.append(scale * mean)
        low.append(scale * (mean - spread))
        high.append(scale * (mean + spread))
    if is_long(series):
        axes.plot(steps, means, color=color, linewidth=0.6, alpha=0.35)
        means = running_mean(means)
    marked = _marked(series, index)
    axes.plot(steps, means, label=label, color=color, marker=marker, markevery=marked)
    if series.seeds > 1:
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


def _marked(series: Series, index: int) -> list[bool]:
    """Which points of a line carry its marker.

    A short line marks all of its points. A long line marks some of them, and each point without a
    neighbour, which a line alone would not show. `index` shifts the marked places, so that the
    markers of two lines do not hide each other.
    """
    filled = list(map(bool, series.curve.values()))
    present = [place for place, value in enumerate(filled) if value]
    if len(present) <= MARKED_POINTS:
        return [True] * len(filled)
    every = max(1, len(present) // MARKERS_ON_LONG)
    chosen = set(present[(index * every) // 3 % every :: every])
    marked = []
    for place in range(len(filled)):
        # Slices end at the ends of the line, where an index would wrap round or fail.
        has_neighbour = any(filled[max(0, place - 1) : place] + filled[place + 1 : place + 2])
        marked.append(place in chosen or not has_neighbour)
    return marked


def grouped_bars(
    axes: Axes, group: int, groups: int, heights: Mapping[int, float], share: float, **style: Any
) -> float:
    """Draw the bars of one of several `groups` that stand side by side at each tick.

    `heights` are by the tick's place, and together the groups take a `share` of the distance
    between two ticks. Returns how far from their ticks these bars stand.
    """
    width = share / groups
    shift = width * (group - (groups - 1) / 2)
    axes.bar([place + shift for place in heights], list(heights.values()), width, **style)
    return shift


# --- axes and titles ---


def step_axis(axes: Axes, lines: Iterable[Series]) -> None:
    """An axis of optimizer steps; its name says if thick lines are running means."""
    smoothed = any(map(is_long, lines))
    axes.set_xlabel(f"optimizer step (thick: {WINDOW}-step mean)" if smoothed else "optimizer step")
    whole_steps(axes)


def whole_steps(axes: Axes) -> None:
    """No ticks between steps."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 4, 5, 10]))


def lettered(panels: Sequence[Axes]) -> None:
    """Put letters before the titles of several panels.

    The letters make mathtext of the titles, so no title may contain a user's words.
    """
    if len(panels) > 1:
        for letter, axes in zip(ascii_lowercase, panels, strict=False):
            title, size = axes.get_title(), axes.title.get_fontsize()
            axes.set_title("")
            axes.set_title(f"$\\bf{{{letter}}}$  {title}".rstrip(), loc="left", fontsize=size)


def set_title(target: Axes | Figure, text: str) -> None:
    """A title taken literally, since a user's name of a setup may contain dollar signs."""
    is_figure = isinstance(target, Figure)
    title = target.suptitle(text, fontsize=10) if is_figure else target.set_title(text)
    title.set_parse_math(False)


# --- legends ---

LEGEND_ROWS, LEGEND_ROW = 5, 0.18  # rows that a figure has room for; inches of each further one


def shared_legend(figure: Figure, panels: Iterable[Axes], note: str | None = None) -> None:
    """One legend below all panels, each label once, under a `note`."""
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    # Bands and bars come last, in a colour that belongs to no line.
    for label in (SPREAD, MARGIN):
        handle = handles.pop(label, None)
        if isinstance(handle, PolyCollection):
            handles[label] = Patch(facecolor=GRAY, alpha=0.3, label=label)
        elif handle is not None:
            handles[label] = Line2D([], [], color=GRAY, linewidth=1, label=label)
    if handles:
        legend_below(figure, list(handles.values()), note)


def legend_below(figure: Figure, handles: Sequence[Any], note: str | None = None) -> None:
    """A legend below a figure, in as many columns as its width takes, under a `note`."""
    width, longest = figure.get_figwidth(), 0
    for handle in handles:
        # Mathtext is shorter on paper than in the label: each symbol is one letter.
        text = handle.get_label().replace("$", "")
        longest = max(longest, len(text.replace("\\varepsilon", "e").replace("\\tau", "t")))
    # Inches of an entry, measured at 8 pt: its sign and gaps, and each of its letters.
    columns = max(1, min(len(handles), int(width / (0.5 + 0.068 * longest))))
    # A legend of many methods makes the figure higher; the panels would have no room otherwise.
    rows = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * max(0, rows - LEGEND_ROWS))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=columns,
        title="\n".join(wrap(note, int(width * NOTE_LETTERS))) if note else None,
        title_fontproperties={"size": 8, "style": "italic"},
    )
