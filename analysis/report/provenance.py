"""The origin of the numbers: code, versions, machines, problems, data, and the folder of each unit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.labels import benchmark_label, setup_title
from analysis.report.html import Html, element, join, paragraph, section, table
from analysis.report.texts import whole
from analysis.scores.evidence import Evidence
from orchestrator.config import Experiment
from orchestrator.monitor.unit_status import UnitStatus
from orchestrator.records.rundir import RunReader

Origin = dict[str, Any]


def provenance_section(
    experiment: Experiment, statuses: Sequence[UnitStatus], runs: Path, evidence: Evidence | None
) -> Html:
    """Code, versions and machines, the problems of the benchmarks by content, and what the training
    data hold.
    """
    distinct = _distinct(read_origins(statuses, runs))
    return section(
        "Provenance",
        "provenance",
        *(_origin(number, origin, len(distinct)) for number, origin in enumerate(distinct, 1)),
        _benchmarks(experiment, evidence) if evidence else Html(),
        _data(experiment, statuses, runs),
    )


def origin_numbers(statuses: Sequence[UnitStatus], runs: Path) -> dict[str, int]:
    """Unit id → which of the section's origins it was made with, from 1; for the units that were
    started.
    """
    origins = read_origins(statuses, runs)
    distinct = _distinct(origins)
    return {unit: distinct.index(origin) + 1 for unit, origin in origins.items()}


def _distinct(origins: Mapping[str, Origin]) -> list[Origin]:
    """Each origin once, in the order of the units that were made with it first."""
    return list(
        {json.dumps(origin, sort_keys=True): origin for origin in origins.values()}.values()
    )


def read_origins(statuses: Sequence[UnitStatus], runs: Path) -> dict[str, Origin]:
    """Unit id → its provenance, for the units that were started."""
    origins = {}
    for status in statuses:
        run = RunReader(runs, status.id)
        if run.started:
            # Models differ from setup to setup; what they are made with does not.
            origins[status.id] = {
                key: value for key, value in run.provenance().items() if key != "models"
            }
    return origins


def commit_text(origin: Origin) -> str:
    """`1a2b3c… (uncommitted changes)`."""
    if origin.get("commit") is None:
        return "unknown: the source was no checkout"
    if origin.get("dirty_diff") is None:
        return f"{origin['commit']} (whether anything was changed is unknown)"
    return f"{origin['commit']}{' with uncommitted changes' if origin['dirty_diff'] else ''}"


def _origin(number: int, origin: Origin, count: int) -> Html:
    host = origin.get("host", {})
    versions = [
        f"{name} {value or 'missing'}" for name, value in sorted(origin.get("versions", {}).items())
    ]
    facts = {
        "Commit": element("code", commit_text(origin)),
        "Machine": ", ".join(
            str(host[key]) for key in ("name", "system", "machine", "cpu") if host.get(key)
        ),
        "Versions": ", ".join(versions),
    }
    rows = [
        element("dt", name) + element("dd", value or "not recorded")
        for name, value in facts.items()
    ]
    title = f"Made with {number}" if count > 1 else "Made with"
    return join([element("h3", title), element("dl", *map(Html, rows))])


def _benchmarks(experiment: Experiment, evidence: Evidence) -> Html:
    rows = []
    for source in evidence.benchmarks:
        run = experiment.setups[source.setup].evaluation.benchmarks[source.benchmark]
        content = ", ".join(f"{key} {_plain(value)}" for key, value in source.content.items())
        known = next((row for row in evidence.rows if row.setup == source.setup), None)
        problems = "" if known is None else f" × {known.columns[source.benchmark].problems:,}"
        asked = f"{run.n}{problems}" if run else ""
        name = f"{benchmark_label(source.benchmark, run)}, {setup_title(source.setup, experiment.setups)}"
        rows.append([name, asked, element("code", content), element("code", source.evaluation_id)])
    headings = ["Benchmark", "Samples × problems", "Content", "Evaluation"]
    return join(
        [element("h3", "Benchmarks"), table("Problems by content", headings, rows, texts=headings)]
    )


def _data(experiment: Experiment, statuses: Sequence[UnitStatus], runs: Path) -> Html:
    rows = []
    for setup in experiment.setups:
        found = [RunReader(runs, s.id).document("data.json") for s in statuses if s.setup == setup]
        documents = {
            json.dumps(document, sort_keys=True): document
            for document in found
            if document is not None
        }
        for document in documents.values():
            rows += [
                [setup_title(setup, experiment.setups), key, value]
                for key, value in _flat(document)
            ]
    heading = element("h3", "Training data")
    if not rows:
        return join([heading, paragraph("No unit recorded what its training data hold.")])
    headings = ["Setup", "Counted", "Number"]
    return join(
        [heading, table("What was counted when it was read", headings, rows, texts=["Counted"])]
    )


def _flat(document: Mapping[str, Any], within: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in document.items():
        name = f"{within}{key}".replace("_", " ")
        rows += _flat(value, f"{name}: ") if isinstance(value, dict) else [(name, _plain(value))]
    return rows


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return whole(value) if type(value) is int else str(value)
