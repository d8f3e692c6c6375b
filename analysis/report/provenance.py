"""The origin of the numbers: commands, time, code, versions, machines, problems and data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from analysis.facts.evidence import Facts
from analysis.labels import benchmark_label, setup_title
from analysis.report.html import (
    Html,
    bullets,
    code,
    element,
    join,
    paragraph,
    section,
    table,
    terms,
)
from analysis.report.texts import duration_in_words, leaves, plain, whole
from analysis.report.timeline import period_text, timeline
from orchestrator.data.benchmarks import overlap_lines
from orchestrator.selection.results_folder import folder_of, submits
from orchestrator.selection.study import Study
from orchestrator.sheet import Sheet

BENCHMARK_HEADINGS = ("Benchmark", "Samples × problems", "Content", "Evaluation")

Document = Mapping[str, Any]


def facts(study: Study, downloads: Html) -> Html:
    """Date, duration, command, hardware and code, as a list of terms."""
    commands = []
    for line in submits(folder_of(study.experiment.name, study.runs)):
        moment = line["at"][:16].replace("T", " ")
        commands.append(join([code(line["command"]), f" ({moment} UTC)"]))
    commits: set[str] = set()
    versions: set[str] = set()
    for origin in read_origins(study).values():
        commits.add(commit_text(origin))
        for name, value in origin.get("versions", {}).items():
            if value:
                versions.add(f"{name} {value}")
    worked = timeline(study.reader(unit) for unit in study.units)
    period = busy = ""
    if worked:
        period = period_text(worked.start, worked.end)
        busy = f"{duration_in_words(worked.busy)}, without the pauses between runs of it"
    texts = {
        "Command": join(commands, ", "),
        "Date": period,
        "At work": busy,
        "Hardware": "; ".join(machines(study)),
        "Code": join(map(code, sorted(commits)), ", "),
        "Versions": ", ".join(sorted(versions)),
        "Downloads": downloads,
    }
    return terms(texts, class_="facts")


def provenance_section(study: Study, evidence: Facts | None) -> Html:
    """The origins of the units, the problems of the benchmarks by content, and the training data."""
    parts = []
    origins = distinct(read_origins(study).values())
    for number, origin in enumerate(origins, 1):
        title = f"Made with {number}" if len(origins) > 1 else "Made with"
        parts += [element("h3", title), _origin(origin)]
    if evidence:
        parts += [element("h3", "Benchmarks"), _benchmarks(study, evidence)]
    parts += [element("h3", "Training data"), _data(study)]
    return section("Provenance", "provenance", *parts)


# --- notes of units when they started ---


def read_origins(study: Study) -> dict[str, Document]:
    """Unit id → its provenance, for the units that were started."""
    origins = {}
    for unit in study.units:
        run = study.reader(unit)
        if run.started:
            # Models differ from setup to setup; without them most units share one origin.
            origin = dict(run.provenance())
            origin.pop("models", None)
            origins[unit.id] = origin
    return origins


def origin_numbers(study: Study) -> dict[str, int]:
    """Unit id → the number of its origin in the section, from 1; for the units that were started."""
    origins = read_origins(study)
    known = distinct(origins.values())
    numbers = {}
    for unit_id, origin in origins.items():
        numbers[unit_id] = known.index(origin) + 1
    return numbers


def distinct(documents: Iterable[Document]) -> list[Document]:
    """Each document once, in the order of its first unit."""
    by_text = {}
    for document in documents:
        by_text.setdefault(json.dumps(document, sort_keys=True), document)
    return list(by_text.values())


def commit_text(origin: Document) -> str:
    """`1a2b3c… with uncommitted changes`."""
    if origin.get("commit") is None:
        return "unknown: the source was no checkout"
    if origin.get("dirty_diff") is None:
        return f"{origin['commit']} (whether anything was changed is unknown)"
    return f"{origin['commit']}{' with uncommitted changes' if origin['dirty_diff'] else ''}"


def machines(study: Study) -> list[str]:
    """Each machine that some attempt ran on: `2 × H100, 8 cores of AMD EPYC, x86_64`."""
    texts: set[str] = set()
    for unit in study.units:
        run = study.reader(unit)
        if run.started:
            for row in run.attempts():
                texts.add(_hardware(row.get("host", {})))
    return sorted(texts - {""})


def _hardware(host: Document) -> str:
    parts = []
    for name, count in sorted(Counter(host.get("gpus") or []).items()):
        parts.append(f"{count} × {name}")
    cpu, cores = host.get("cpu"), host.get("cores")
    if cpu:
        parts.append(f"{cores} cores of {cpu}" if cores else cpu)
    return ", ".join(filter(None, [*parts, host.get("machine")]))


def _origin(origin: Document) -> Html:
    host = origin.get("host", {})
    words = [str(host.get(key) or "") for key in ("name", "system", "machine", "cpu")]
    versions = []
    for name, value in sorted(origin.get("versions", {}).items()):
        versions.append(f"{name} {value or 'missing'}")
    texts = {
        "Commit": code(commit_text(origin)),
        "Machine": ", ".join(filter(None, words)),
        "Versions": ", ".join(versions),
    }
    if engine := origin.get("engine"):
        texts["Engines"] = ", ".join(f"{name} {value}" for name, value in engine.items())
    return terms(texts)


# --- problems and data ---


def _benchmarks(study: Study, evidence: Facts) -> Html:
    setups = study.experiment.setups
    rows = []
    for source in evidence.benchmarks:
        run = setups[source.setup].evaluation.benchmarks[source.benchmark]
        name = f"{benchmark_label(source.benchmark, run)}, {setup_title(source.setup, setups)}"
        scored = next((row for row in evidence.rows if row.setup == source.setup), None)
        problems = f" × {scored.columns[source.benchmark].problems:,}" if scored else ""
        asked = f"{run.n}{problems}" if run else ""
        content = []
        for key, value in source.content.items():
            content.append(f"{key} {_counted(value)}")
        rows.append([name, asked, code(", ".join(content)), code(source.evaluation_id)])
    sheet = Sheet.of(BENCHMARK_HEADINGS, rows, left=range(len(BENCHMARK_HEADINGS)))
    return table("Problems by content", sheet)


def _data(study: Study) -> Html:
    """Counts of the training data, and the training problems that stand in benchmarks."""
    rows = []
    lines: dict[str, None] = {}  # a dict for an ordered set
    for setup in study.experiment.setups:
        recorded = []
        for unit in study.units_of(setup):
            document = study.reader(unit).document("data.json")
            if document:
                recorded.append(document)
        title = setup_title(setup, study.experiment.setups)
        for document in distinct(recorded):
            counts = dict(document)
            overlap = counts.pop("overlap", {})
            for name, value in leaves(counts, ": "):
                rows.append([title, name.replace("_", " "), _counted(value)])
            of_setup = study.experiment.setups[setup]
            for line in overlap_lines(of_setup, overlap, counts.get("prompts", 0)):
                lines[f"{title}: {line}"] = None
    if not rows:
        return paragraph("No unit recorded what its training data hold.")
    sheet = Sheet.of(["Setup", "Counted", "Number"], rows, left=(0, 1))
    return join([table("What was counted when it was read", sheet), bullets(list(lines))])


def _counted(value: Any) -> str:
    """A count with commas, or another value as a text."""
    return whole(value) if type(value) is int else plain(value)
