"""The list of figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from analysis.facts.curves import WantedSetting
from analysis.facts.evidence import Facts
from analysis.figures import probed, setup_map, sweep, tradeoff, training
from analysis.figures.panels import WIDTH
from analysis.figures.picture import Picture

MAPPED = 3  # setups from which on the map is drawn; two are compared as well in the table
# In the order of the report, after the trajectories. A heat map follows the sweep where there is a grid.
FIGURES = (
    *(training.distance, training.cost, training.entropy),
    *(sweep.picture, tradeoff.picture, training.diagnostics),
    *(probed.continuation, probed.overview),
)


def pictures(
    facts: Facts, width: float = WIDTH, wanted: Sequence[WantedSetting] = ()
) -> Iterator[Picture]:
    """The map of many setups and the figures of each, `width` inches wide, drawn when asked for.

    The map rests on the evidence, which facts of the depth "scores" lack; other figures do not.
    The trajectories show the `wanted` settings of a method instead of its best one.
    """
    if len(facts.experiment.setups) >= MAPPED:
        yield replace(setup_map.picture(facts), width=width)
    for data in facts.runs:
        drawn = [training.trajectories(data, wanted), *(figure(data) for figure in FIGURES)]
        if (heat := sweep.heat(data)) is not None:
            drawn.insert(FIGURES.index(sweep.picture) + 2, heat)
        for each in drawn:
            yield replace(each, width=width)


def trajectory_pictures(facts: Facts) -> Iterator[Picture]:
    """The trajectories of each setup: one second to draw, where all figures take several."""
    return map(training.trajectories, facts.runs)
