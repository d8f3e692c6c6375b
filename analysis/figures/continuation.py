"""Success of continued prefixes: those of TRB over those of vanilla (paper, "Early-Training
Comparisons").
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.picture import NOT_PROBED, Caption, Picture, SetupRuns
from analysis.figures.style import (
    BLACK,
    GRAY,
    STUDENT,
    TEACHER,
    WIDTH,
    new_figure,
    set_title,
    shared_legend,
    styled,
)
from analysis.probe import gains

CAPTION = Caption(
    "Gain of continued prefixes",
    "bar chart of the relative gain in success of trust-region prefixes over vanilla ones, by prefix length",
    "Rollouts of the untrained student and of the trust region, cut after t tokens and continued by the student or "
    "the teacher: relative gain in success, with its interval over prompts.",
    "It is measured before any training, and a high relative gain may stand on a low success rate.",
)

# Relative gain (s_TRB − s_vanilla) ÷ s_vanilla with the ends of its 95 % interval, where it has
# one.
Gain = tuple[float, float | None, float | None]
FILLS = {"student": (STUDENT, ""), "teacher": (TEACHER, "///")}
INTERVAL = "95 % interval over prompts"


@styled()
def draw(
    gains: Mapping[str, Mapping[int, Gain | None]], title: str, width: float = WIDTH
) -> Figure:
    """Bars of the gain in per cent by truncation length t (tokens), one colour for each model that
    continues.

    A gain that is not defined, None, has no bar but the words `no data`.
    """
    figure = new_figure(width, 3.4)
    axes = figure.subplots()
    lengths = sorted({length for own in gains.values() for length in own})
    breadth = 0.8 / max(1, len(gains))
    for index, (continuer, own) in enumerate(gains.items()):
        color, hatch = FILLS[continuer]
        shift = breadth * (index - (len(gains) - 1) / 2)
        bars: list[tuple[float, Gain]] = []
        for place, t in enumerate(lengths):
            gain = own.get(t)
            if gain is None:
                axes.text(
                    place + shift,
                    0,
                    "no data",
                    color=GRAY,
                    fontsize=7,
                    rotation=90,
                    ha="center",
                    va="bottom",
                )
            else:
                bars.append((place + shift, gain))
        _draw_bars(
            axes,
            bars,
            breadth,
            {"facecolor": color, "hatch": hatch, "label": f"continued by the {continuer}"},
        )
    axes.axhline(0, color=BLACK, linewidth=0.8)
    axes.set_xticks(range(len(lengths)), [str(t) for t in lengths])
    axes.grid(visible=False, axis="x")
    axes.set(
        xlabel="length of the prefix, $t$ (tokens)", ylabel="relative gain of TRB prefixes (%)"
    )
    axes.margins(y=0.15)
    set_title(axes, title)
    shared_legend(figure, [axes])
    return figure


def _draw_bars(
    axes: Axes, bars: list[tuple[float, Gain]], width: float, look: dict[str, str]
) -> None:
    places = [place for place, _ in bars]
    heights = [100 * gain[0] for _, gain in bars]
    axes.bar(places, heights, width, edgecolor="white", **look)  # pyright: ignore[reportArgumentType]
    for place, (_, low, high) in bars:
        if low is not None and high is not None:
            axes.vlines(place, 100 * low, 100 * high, color=BLACK, linewidth=1, label=INTERVAL)


def picture(data: SetupRuns) -> Picture:
    """The gains that the continuation probe of a setup found."""
    name, found = f"continuation-{data.name}", gains.continuation_gains(data.study, data.name)
    if not found:
        return Picture(name, CAPTION, missing=NOT_PROBED)
    drawing = partial(draw, found, f"{data.title}, step 0")
    return Picture(
        name, CAPTION, drawing, basis="Untrained student; intervals: 95 % bootstrap over prompts."
    )
