"""The hyper-parameters: the grid of each method, and every key of each setup."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from analysis.labels import method_label, setup_title
from analysis.report.html import Html, code, element, section, table
from analysis.report.texts import leaves, plain
from orchestrator.config import Experiment
from orchestrator.sheet import Sheet

# Keys of a setup; its models, data and benchmarks have tables of their own.
PARTS = ("training", "engine", "evaluation")
METHOD_HEADINGS = ("Method", "Values", "Seeds", "Placement")


def parameters_section(experiment: Experiment) -> Html:
    """The grid of each method beside the keys of each setup."""
    methods = element("div", element("h3", "Methods"), _methods(experiment))
    keys = element("div", element("h3", "Setups"), _keys(experiment))
    sides = element("div", methods, keys, class_="sides")
    return section("Hyper-parameters", "parameters", sides)


def _methods(experiment: Experiment) -> Html:
    rows = []
    for method, grid in experiment.methods.items():
        knobs = []
        for knob, values in grid.items():
            knobs.append(f"{knob} {plain(values)}")
        place = experiment.placements.get(method, experiment.runtime.placement).mode
        seeds = plain(experiment.seeds_of(method))
        rows.append([method_label(method), "; ".join(knobs) or "no knobs", seeds, place])
    sheet = Sheet.of(METHOD_HEADINGS, rows, left=range(len(METHOD_HEADINGS)))
    return table("Settings that were asked for", sheet)


def _keys(experiment: Experiment) -> Html:
    """A column for each setup, and a row for each key that some setup has."""
    headings = ["Key"]
    values_of: dict[str, dict[str, Any]] = {}  # key → setup → value
    for name, setup in experiment.setups.items():
        headings.append(setup_title(name, experiment.setups))
        parts = asdict(setup)
        del parts["evaluation"]["benchmarks"]
        for part in PARTS:
            for key, value in leaves(parts[part], ".", f"{part}."):
                values_of.setdefault(key, {})[name] = value
    rows = []
    for key, values in values_of.items():
        row: list[str] = [code(key)]
        for name in experiment.setups:
            row.append(plain(values.get(name)))
        rows.append(row)
    sheet = Sheet.of(headings, rows, left=range(len(headings)))
    return table("Keys of the experiment file", sheet)
