"""Success of continued prefixes: TRB's over vanilla's (paper, "Early-Training Comparisons")."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from matplotlib.figure import Figure

from analysis.figures import panels, style
from analysis.figures.picture import NOT_PROBED, Caption, Picture, SetupRuns
from analysis.probe.gains import Gain, continuation_gains

CAPTION = Caption(
    "continuation",
    "Gain of continued prefixes",
    "bar chart of the relative gain in success of trust-region prefixes over vanilla ones, by prefix length",
    "Rollouts of the untrained student and of the trust region, cut after t tokens and continued by the student or "
    "the teacher: relative gain in success, with its interval over prompts.",
    "It is measured before any training, and a high relative gain may stand on a low success rate.",
)
FILLS = {"student": (style.STUDENT, ""), "teacher": (style.TEACHER, "///")}
INTERVAL = "95 % interval over prompts"
BASIS = "Untrained student; intervals: 95 % bootstrap over prompts."


@style.styled()
def draw(
    gains: Mapping[str, Mapping[int, Gain | None]], title: str, width: float = style.WIDTH
) -> Figure:
    """Bars of the gain in per cent by prefix length t (tokens), a colour for each continuer.

    A gain that is not defined, None, has no bar but the words `no data`.
    """
    figure = style.new_figure(width, 3.4)
    axes = figure.subplots()
    lengths = sorted(set().union(*gains.values()))
    for index, (continuer, own) in enumerate(gains.items()):
        defined: dict[int, tuple[float, float | None, float | None]] = {}
        heights: dict[int, float] = {}
        for place, t in enumerate(lengths):
            gain = own.get(t)
            if gain is not None:
                defined[place] = gain
                heights[place] = 100 * gain[0]
        color, hatch = FILLS[continuer]
        label = f"continued by the {continuer}"
        bars = {"facecolor": color, "hatch": hatch, "label": label, "edgecolor": "white"}
        shift = panels.grouped_bars(axes, index, len(gains), heights, 0.8, **bars)
        for place in range(len(lengths)):
            if place not in defined:
                words = {"color": style.GRAY, "fontsize": 7, "ha": "center", "va": "bottom"}
                axes.text(place + shift, 0, "no data", rotation=90, **words)
                # Words alone do not widen the axis, and those of the first or last length would
                # lie outside.
                axes.update_datalim([(place + shift, 0)])
                continue
            _, low, high = defined[place]
            if low is not None and high is not None:
                ends = {"color": style.BLACK, "linewidth": 1, "label": INTERVAL}
                axes.vlines(place + shift, 100 * low, 100 * high, **ends)
    axes.axhline(0, color=style.BLACK, linewidth=0.8)
    axes.set_xticks(range(len(lengths)), list(map(str, lengths)))
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("length of the prefix, $t$ (tokens)")
    axes.set_ylabel("relative gain of TRB prefixes (%)")
    axes.margins(y=0.15)
    panels.set_title(axes, title)
    panels.shared_legend(figure, [axes])
    return figure


def picture(data: SetupRuns) -> Picture:
    """The gains that the continuation probe of a setup found."""
    gains = continuation_gains(data.study, data.name)
    if not gains:
        return Picture(CAPTION, data.name, missing=NOT_PROBED)
    return Picture(CAPTION, data.name, partial(draw, gains, f"{data.title}, step 0"), BASIS)
