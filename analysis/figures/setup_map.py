"""The map of many setups: each method's lead over vanilla, beside the gain of TRB prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import panels, style
from analysis.figures.picture import Caption, Picture
from analysis.labels import AVERAGE, BASE, setup_title
from analysis.numbers import signed
from analysis.probe.gains import Gain, continuation_gains
from analysis.scores.assess import assess
from analysis.scores.candidates import Selected
from analysis.scores.confirmed import confirmed_rows
from analysis.scores.evidence import Difference
from orchestrator.experiment.methods import REFERENCE
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.study import Study

CAPTION = Caption(
    "map",
    "Where each method differs from vanilla",
    "grid of each method's lead over vanilla in each setup, beside the relative gain of trust-region prefixes",
    "Left: points of pass@1 above or below vanilla, a row for each setup. Right: what trust-region prefixes are worth "
    "before any training, with 95 % intervals over prompts.",
    "Scores of different setups are not comparable, and a test in each of many setups finds some difference by chance.",
)
COLORS = "RdBu"
LEAST_SPAN, MOST_SPAN = 3.0, 10.0  # points at which the colours end
DARK = 0.6  # share of the span from which letters are white
DOTS = {"student": style.BLACK, "teacher": style.TEACHER}  # colours of the gains, by continuer
MARKS = ((0.01, "**"), (0.05, "*"))  # below which p-value, the strictest first
TESTED = "* p < .05, ** p < .01 (Dunnett, within a setup)"


@dataclass(frozen=True)
class SetupLeads:
    """One row of the map: differences to vanilla by method in points, and gains by continuer."""

    title: str
    differences: Mapping[str, Difference]
    gains: Mapping[str, Gain | None]


@style.styled()
def draw(
    setups: Sequence[SetupLeads], methods: Sequence[str], width: float = style.WIDTH
) -> Figure:
    """A grid of leads in points, beside the gains if any setup has been probed.

    In a narrow figure the two panels stand one above the other.
    """
    height = 1.6 + 0.3 * len(setups)
    probed = any(setup.gains for setup in setups)
    wide = width >= style.NARROW
    figure = style.new_figure(width, height if wide or not probed else 2 * height)
    if not probed:
        axes = [figure.subplots()]
    elif wide:
        axes = list(figure.subplots(1, 2, width_ratios=(2.2, 1), sharey=True))
    else:
        axes = list(figure.subplots(2, 1))
    _draw_grid(axes[0], setups, methods)
    if probed:
        _draw_gains(axes[1], setups)
        if not wide:
            _name_rows(axes[1], setups)
    panels.lettered(axes)
    panels.shared_legend(figure, axes)
    return figure


def _draw_grid(axes: Axes, setups: Sequence[SetupLeads], methods: Sequence[str]) -> None:
    leads = np.full((len(setups), len(methods)), np.nan)
    for row, setup in enumerate(setups):
        for column, method in enumerate(methods):
            if method in setup.differences:
                leads[row, column] = float(setup.differences[method].estimate.value)
    span = min(MOST_SPAN, max(LEAST_SPAN, float(np.nanmax(np.abs(leads)))))
    axes.imshow(leads, cmap=COLORS, vmin=-span, vmax=span, aspect="auto")
    for row, setup in enumerate(setups):
        for column, method in enumerate(methods):
            lead = leads[row, column]
            # The colours are dark at both ends. A missing lead is nan, which compares as false.
            color = "white" if abs(lead) > DARK * span else style.BLACK
            text = _cell(setup.differences.get(method))
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=color)
    labels = [style.method_label(method).replace(" ", "\n") for method in methods]
    axes.set_xticks(range(len(methods)), labels, fontsize=7)
    axes.grid(visible=False)
    _name_rows(axes, setups)
    axes.set_xlabel(TESTED, fontsize=7)
    axes.set_title("lead over vanilla (points)")


def _cell(difference: Difference | None) -> str:
    """`+5.4**`; an unknown difference is empty."""
    if difference is None:
        return ""
    p_value = 1.0 if difference.p_value is None else difference.p_value
    mark = next((sign for limit, sign in MARKS if p_value < limit), "")
    return f"{signed(difference.estimate.value)}{mark}"


def _name_rows(axes: Axes, setups: Sequence[SetupLeads]) -> None:
    axes.set_yticks(range(len(setups)))
    for label in axes.set_yticklabels([setup.title for setup in setups], fontsize=7):
        label.set_parse_math(False)  # users name setups, and their dollar signs begin no formula
    # The grid and the gains share these limits, with the first setup on top.
    axes.set_ylim(len(setups) - 0.5, -0.5)


def _draw_gains(axes: Axes, setups: Sequence[SetupLeads]) -> None:
    probed: set[str] = set()
    for setup in setups:
        probed.update(setup.gains)
    continuers = [name for name in DOTS if name in probed]
    for index, continuer in enumerate(continuers):
        color = DOTS[continuer]
        shift = 0.16 * (2 * index - (len(continuers) - 1))
        for row, setup in enumerate(setups):
            gain = setup.gains.get(continuer)
            if gain is None:
                continue
            value, low, high = gain
            label = f"continued by the {continuer}"
            axes.plot(100 * value, row + shift, "o", color=color, markersize=4, label=label)
            if low is not None and high is not None:
                axes.hlines(row + shift, 100 * low, 100 * high, color=color, linewidth=1)
    axes.axvline(0, color=style.BLACK, linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("relative gain (%)")
    axes.set_title("TRB prefixes, step 0")


def picture(study: Study, chosen: Sequence[Selected]) -> Picture:
    """The leads of all methods in all setups, over confirming runs if the experiment has some."""
    experiment = study.experiment
    if experiment.confirmed_methods:
        rows = confirmed_rows(with_confirmation(study), chosen)
    else:
        rows = assess(study, chosen).rows
    differences: dict[str, dict[str, Difference]] = {}
    for row in rows:
        gap = row.columns[AVERAGE].difference if row.columns else None
        if gap is not None and row.method != BASE:
            differences.setdefault(row.setup, {})[row.method] = gap
    if not differences:
        missing = "no setup has scores of vanilla and of another method"
        return Picture(CAPTION, experiment.name, missing=missing)
    setups: list[SetupLeads] = []
    for name in experiment.setups:
        if name in differences:
            title = setup_title(name, experiment.setups)
            setups.append(SetupLeads(title, differences[name], _first_gains(study, name)))
    methods = [method for method in experiment.methods if method != REFERENCE]
    basis = f"{len(setups)} of {len(experiment.setups)} setups have scores to compare."
    if experiment.confirmed_methods:
        basis += " All scores are of seeds that chose nothing."
    return Picture(CAPTION, experiment.name, partial(draw, setups, methods), basis)


def _first_gains(study: Study, setup: str) -> dict[str, Gain | None]:
    """Continuer → gain at the shortest prefix; empty before the setup is probed."""
    gains = {}
    for continuer, of_lengths in continuation_gains(study, setup).items():
        gains[continuer] = of_lengths[min(of_lengths)]
    return gains
