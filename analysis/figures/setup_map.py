"""The map of many setups: each method's lead over vanilla, beside the gain of TRB prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.facts.evidence import Difference, Facts
from analysis.facts.probe import Gain, continuation_gains
from analysis.figures import panels
from analysis.figures.picture import Caption, Picture
from analysis.labels import AVERAGE, BASE, method_label, setup_title
from analysis.numbers import signed, tenths_text
from orchestrator.experiment.methods import REFERENCE

CAPTION = Caption(
    "map",
    "Where each method differs from vanilla",
    "grid of each method's lead over vanilla in each setup, beside the worth of trust-region prefixes",
    "Left: pass@1 of the untrained student and of vanilla in per cent, and points of each method above or below "
    "vanilla, a row for each setup. Right: how often trust-region prefixes succeed before any training, as a multiple "
    "of vanilla's prefixes, with 95 % intervals over prompts.",
    "Scores of different setups are not comparable, and a test in each of many setups finds some difference by chance.",
)
DOTS = {"student": panels.BLACK, "teacher": panels.TEACHER}  # colours of the gains, by continuer
MARKS = ((0.01, "**"), (0.05, "*"))  # below which p-value, the strictest first
TESTED = "* p < .05, ** p < .01 (Welch, corrected within a setup)"
SCORES = ("Untrained", "Vanilla")  # the first two columns, without a colour


@dataclass(frozen=True)
class SetupLeads:
    """One row of the map: differences to vanilla by method in points, and gains by continuer.

    `untrained` and `vanilla` are the scores of both in percent.
    """

    title: str
    differences: Mapping[str, Difference]
    gains: Mapping[str, Gain | None]
    untrained: Fraction | None = None
    vanilla: Fraction | None = None

    @property
    def scores(self) -> tuple[Fraction | None, Fraction | None]:
        return self.untrained, self.vanilla


@panels.styled()
def draw(
    setups: Sequence[SetupLeads], methods: Sequence[str], width: float = panels.WIDTH
) -> Figure:
    """A grid of scores and leads, beside the gains if any setup has been probed.

    In a narrow figure the two panels stand one above the other.
    """
    height = 1.8 + 0.3 * len(setups)
    probed = any(setup.gains for setup in setups)
    wide = width >= panels.NARROW
    figure = panels.new_figure(width, height if wide or not probed else 2 * height)
    if not probed:
        axes = [figure.subplots()]
    elif wide:
        axes = list(figure.subplots(1, 2, width_ratios=(2.6, 1), sharey=True))
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
    leads = np.full((len(setups), len(SCORES) + len(methods)), np.nan)
    for row, setup in enumerate(setups):
        for column, method in enumerate(methods, start=len(SCORES)):
            if method in setup.differences:
                leads[row, column] = float(setup.differences[method].estimate.value)
    span, letters = panels.color_leads(axes, leads)
    for row, setup in enumerate(setups):
        cells = [tenths_text(score) if score is not None else "" for score in setup.scores]
        cells += [_cell(setup.differences.get(method)) for method in methods]
        for column, text in enumerate(cells):
            color = letters[row][column]
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=color)
    labels = [*SCORES, *(method_label(method).replace(" ", "\n") for method in methods)]
    axes.set_xticks(range(len(labels)), labels, fontsize=7)
    _name_rows(axes, setups)
    axes.set_xlabel(f"{TESTED}\ncolours end at ± {span:g} points", fontsize=7)
    axes.set_title("score (%), and lead over vanilla (points)")


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
            label = f"b: continued by the {continuer}"
            axes.plot(1 + value, row + shift, "o", color=color, markersize=4, label=label)
            if low is not None and high is not None:
                axes.hlines(row + shift, 1 + low, 1 + high, color=color, linewidth=1)
    axes.axvline(1, color=panels.BLACK, linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_formatter("{x:g}×")
    axes.set_xlabel("success ÷ vanilla's,\nbefore training", fontsize=8)
    axes.set_title("TRB prefixes")


def picture(facts: Facts) -> Picture:
    """The leads of all methods in all setups, over confirming runs if the experiment has some."""
    experiment = facts.experiment
    across = {mean.method: mean.difference for mean in facts.across}
    differences: dict[str, dict[str, Difference]] = {}
    vanilla: dict[str, Fraction] = {}
    for row in facts.confirmed if experiment.confirmed_methods else facts.rows:
        if not row.columns or row.method == BASE:
            continue
        average = row.columns[AVERAGE]
        if row.method == REFERENCE:
            vanilla[row.setup] = average.score.value
        elif average.difference is not None:
            differences.setdefault(row.setup, {})[row.method] = average.difference
    if not differences:
        missing = "no setup has scores of vanilla and of another method"
        return Picture(CAPTION, experiment.name, missing=missing)
    setups: list[SetupLeads] = []
    for name in experiment.setups:
        if name in differences:
            leads = SetupLeads(
                setup_title(name, experiment.setups),
                differences[name],
                _first_gains(facts, name),
                facts.scores.get((name, BASE), {}).get(AVERAGE),
                vanilla.get(name),
            )
            setups.append(leads)
    if across:
        setups.append(SetupLeads(f"mean of {len(setups)} setups", across, {}))
    methods = [method for method in experiment.methods if method != REFERENCE]
    basis = f"{len(differences)} of {len(experiment.setups)} setups have scores to compare."
    if experiment.confirmed_methods:
        basis += " All scores are of seeds that chose nothing."
    return Picture(CAPTION, experiment.name, partial(draw, setups, methods), basis)


def _first_gains(facts: Facts, setup: str) -> dict[str, Gain | None]:
    """Continuer → gain at the shortest prefix; empty before the setup is probed."""
    gains = {}
    for continuer, of_lengths in continuation_gains(facts.study, setup).items():
        gains[continuer] = of_lengths[min(of_lengths)]
    return gains
