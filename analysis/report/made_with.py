"""How the numbers were made: when, with which command, on what machine, and with which
hyper-parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from analysis.labels import method_label, setup_title
from analysis.report.html import Html, element, join, section, table
from analysis.report.provenance import commit_text, read_origins
from analysis.report.texts import duration_in_words
from analysis.report.timeline import period_text, timeline
from orchestrator.config import Experiment
from orchestrator.monitor.unit_status import UnitStatus
from orchestrator.records.rundir import RunReader
from orchestrator.selection.results_folder import folder_of, submits

PARTS = (
    "training",
    "engine",
    "evaluation",
)  # of a setup; its models, data and benchmarks have tables of their own


def facts(
    experiment: Experiment, statuses: Sequence[UnitStatus], runs: Path, downloads: Html
) -> Html:
    """Date, duration, command, hardware and code, as a list of terms."""
    origins = list(read_origins(statuses, runs).values())
    when = timeline(runs, [status.id for status in statuses])
    versions: set[tuple[str, str]] = set()
    for origin in origins:
        versions |= {(name, value) for name, value in origin.get("versions", {}).items() if value}
    known = {
        "Command": _commands(experiment, runs),
        "Date": period_text(when.start, when.end) if when else "",
        "At work": f"{duration_in_words(when.busy)}, without the pauses between runs of it"
        if when
        else "",
        "Hardware": "; ".join(machines(statuses, runs)),
        "Code": join(
            (element("code", text) for text in sorted(set(map(commit_text, origins)))), ", "
        ),
        "Versions": ", ".join(f"{name} {value}" for name, value in sorted(versions)),
        "Downloads": downloads,
    }
    rows = [
        element("dt", name) + element("dd", value or "not recorded")
        for name, value in known.items()
    ]
    return element("dl", *map(Html, rows), class_="facts")


def _commands(experiment: Experiment, runs: Path) -> Html:
    """Each command that ran a part of it, with its time; nothing where no submit was recorded."""
    parts = [
        join([element("code", line["command"]), f" ({line['at'][:16].replace('T', ' ')} UTC)"])
        for line in submits(folder_of(experiment.name, runs))
    ]
    return join(parts, ", ")


def hyper_parameters_section(experiment: Experiment) -> Html:
    """The grid of each method, and every hyper-parameter of each setup."""
    sides = [element("div", part) for part in (_methods(experiment), _keys(experiment))]
    return section("Hyper-parameters", "parameters", element("div", *sides, class_="sides"))


def machines(statuses: Sequence[UnitStatus], runs: Path) -> list[str]:
    """Each machine that some attempt ran on: `2 × AMD EPYC, Linux`."""
    texts: set[str] = set()
    for status in statuses:
        run = RunReader(runs, status.id)
        if run.started:
            # Directories of versions that noted no attempts know the machine of the first one.
            attempts = run.attempts() or [run.provenance()]
            texts |= {hardware_text(row.get("host", {})) for row in attempts}
    return sorted(texts - {""})


def hardware_text(host: Mapping[str, Any]) -> str:
    """`8 × NVIDIA H100; 64 cores of AMD EPYC 9V74; x86_64`; empty where nothing of it was recorded."""
    gpus = Counter(host.get("gpus") or [])
    parts = [f"{count} × {name}" for name, count in sorted(gpus.items())]
    if host.get("cpu"):
        parts.append(
            f"{host['cores']} cores of {host['cpu']}" if host.get("cores") else host["cpu"]
        )
    return ", ".join([*parts, host.get("machine") or ""]).rstrip(", ")


def _methods(experiment: Experiment) -> Html:
    """The grid as it was asked for."""
    rows = []
    for method, grid in experiment.methods.items():
        knobs = "; ".join(f"{knob} {_plain(values)}" for knob, values in grid.items())
        place = experiment.placements.get(method, experiment.runtime.placement).mode
        rows.append(
            [method_label(method), knobs or "no knobs", _plain(experiment.seeds_of(method)), place]
        )
    headings = ["Method", "Values", "Seeds", "Placement"]
    return join(
        [
            element("h3", "Methods"),
            table("Settings that were asked for", headings, rows, texts=headings),
        ]
    )


def _keys(experiment: Experiment) -> Html:
    """A column for each setup; a row for each key that one of them has."""
    columns = []
    for setup in experiment.setups.values():
        fields = asdict(setup)
        del fields["evaluation"]["benchmarks"]
        columns.append(dict(_flat({part: fields[part] for part in PARTS})))
    rows = []
    for key in dict.fromkeys(key for column in columns for key in column):
        rows.append([element("code", key), *(_plain(column.get(key)) for column in columns)])
    titles = [setup_title(name, experiment.setups) for name in experiment.setups]
    return join(
        [
            element("h3", "Setups"),
            table("Keys of the experiment file", ["Key", *titles], rows, texts=titles),
        ]
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _plain(value: Any) -> str:
    """A value as an experiment file has it."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case list() | tuple():
            return ", ".join(map(_plain, value))
    return str(value)
