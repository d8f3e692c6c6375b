"""The later points of a search that asks by scores, as they were asked (`sweep.asking`).

Every reader takes them from `results/NAME/asked.json`, in which they stand before any of their units
begins.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

from orchestrator.experiment.search import PointList, drawn
from orchestrator.experiment.units import Unit, units_at
from orchestrator.records.files import parse_json
from orchestrator.selection.results_folder import ASKED, folder_of
from orchestrator.selection.samples_wanted import asks_more
from orchestrator.selection.study import Study


def with_asked(study: Study) -> Study:
    """The study with the units of the points that were asked by now; itself without such a search."""
    if not study.experiment.spaces:
        return study
    there = {unit.id for unit in study.units}
    added: dict[str, Unit] = {}
    for setup, by_method in asked_points(study).items():
        for method, points in by_method.items():
            for unit in _units(study, setup, method, points):
                if unit.id not in there:
                    added[unit.id] = unit
    return replace(study, units=[*study.units, *added.values()]) if added else study


def unasked_units(study: Study) -> list[Unit]:
    """Stand-ins for the units of points that will be asked, so that a plan can count them.

    `study` comes from `with_asked`. They are the points that a random search would draw.
    """
    found: dict[str, Unit] = {}
    there = {unit.id for unit in study.units}
    for family in filter(lambda each: asks_more(study, each), study.families()):
        first = family[0][0]
        method = cast(str, first.method)
        search = study.experiment.search
        trials = cast(int, search.trials)
        points = drawn(method, study.experiment.spaces[method], search, trials)
        for unit in _units(study, first.setup, method, points[len(family) :]):
            if unit.id not in there:
                found[unit.id] = unit
    return list(found.values())


def _units(study: Study, setup: str, method: str, points: PointList) -> list[Unit]:
    units: list[Unit] = []
    for knobs in points:
        units += units_at(study.experiment, setup, method, knobs, study.runs)
    return units


def asked_points(study: Study) -> dict[str, dict[str, PointList]]:
    """Setup → method → the points that were asked by now."""
    file = file_of(study)
    try:
        return parse_json(file.read_bytes(), file, f"remove {file}: the search asks again")
    except FileNotFoundError:
        return {}


def file_of(study: Study) -> Path:
    """The file of the asked points."""
    return folder_of(study.experiment.name, study.runs) / ASKED
