"""The list of figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from analysis.facts.evidence import Facts
from analysis.figures import probed, setup_map, sweep, tradeoff, training
from analysis.figures.panels import WIDTH
from analysis.figures.picture import Picture

MAPPED = 3  # setups from which on the map is drawn; two are compared as well in the table
# In the order of the report.
FIGURES = (
    *(training.trajectories, training.cost, training.entropy),
    *(sweep.picture, tradeoff.picture, training.diagnostics),
    *(probed.continuation, probed.overview),
)


def pictures(facts: Facts, width: float = WIDTH) -> Iterator[Picture]:
    """The map of many setups and the figures of each, `width` inches wide, drawn when asked for.

    The map rests on the evidence, which facts of the depth "scores" lack; other figures do not.
    """
    if len(facts.experiment.setups) >= MAPPED:
        yield replace(setup_map.picture(facts), width=width)
    for data in facts.runs:
        for figure in FIGURES:
            yield replace(figure(data), width=width)


def trajectory_pictures(facts: Facts) -> Iterator[Picture]:
    """The trajectories of each setup: one second to draw, where all figures take several."""
    return map(training.trajectories, facts.runs)
