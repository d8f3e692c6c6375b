"""The style of all figures: sizes, fonts, colours and markers, and the names of settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

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
    """A method's knob as mathtext: its symbol, or its name where it has none."""
    known = METHODS[method].knobs if method in METHODS else {}
    symbol = known[name].symbol if name in known else ""
    return symbol or name


def knob_texts(method: str, knobs: Mapping[str, Any]) -> str:
    """`ε₀=0.05, K=12` as mathtext."""
    return ", ".join(f"{knob_symbol(method, name)}={value:g}" for name, value in knobs.items())


def setting_text(method: str, knobs: Mapping[str, Any]) -> str:
    """Method and knobs for a legend: `TRB ε₀=0.05, K=12`.

    A label that ends in the knob's symbol does not repeat it: `Fixed ε=0.01`.
    """
    label = method_label(method)
    if [knob_symbol(method, name) for name in knobs] == [EPSILON]:
        label = label.removesuffix("ε").rstrip()
    return f"{label} {knob_texts(method, knobs)}".rstrip()
