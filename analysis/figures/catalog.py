"""The list of figures, and the runs of each setup that they are drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from analysis.facts import curves
from analysis.facts.candidates import select
from analysis.figures import (
    continuation,
    cost,
    diagnostics,
    entropy,
    overview,
    setup_map,
    sweep,
    tradeoff,
    trajectories,
)
from analysis.figures.picture import Picture, SetupRuns
from analysis.figures.style import WIDTH
from analysis.labels import setup_title
from orchestrator.selection.study import Study

MAPPED = 3  # setups from which on the map is drawn; two are compared as well in the table
# In the order of the report.
FIGURES = (trajectories, cost, entropy, sweep, tradeoff, diagnostics, continuation, overview)


def pictures(study: Study, width: float = WIDTH) -> Iterator[Picture]:
    """The map of many setups and the figures of each, `width` inches wide, drawn when asked for."""
    if len(study.experiment.setups) >= MAPPED:
        yield replace(setup_map.picture(study, select(study)), width=width)
    for data in _setups(study):
        for figure in FIGURES:
            yield replace(figure.picture(data), width=width)


def trajectory_pictures(study: Study) -> Iterator[Picture]:
    """The trajectories of each setup: one second to draw, where all figures take several."""
    return map(trajectories.picture, _setups(study))


def _setups(study: Study) -> Iterator[SetupRuns]:
    chosen = select(study)
    untrained = curves.base_scores(study)
    for name in study.experiment.setups:
        settings = curves.read_settings(study, name)
        own = [selected for selected in chosen if selected.setup == name]
        best = curves.best_settings(settings, own)
        title = setup_title(name, study.experiment.setups)
        yield SetupRuns(name, title, study, settings, own, best, untrained.get(name))
