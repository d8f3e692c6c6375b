"""The origin of a study's numbers: commands, time, code, machines and training data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.data.benchmarks import overlap_lines
from orchestrator.records.clock import seconds_spent, worked
from orchestrator.records.provenance import file_sha256_at
from orchestrator.records.rundir import RunReader
from orchestrator.selection.results_folder import folder_of, submits
from orchestrator.selection.study import Study

Document = Mapping[str, Any]
LOCK = "docker/lock/runtime.txt"  # versions of all packages, in a checkout


@dataclass(frozen=True)
class Origin:
    """Code, versions and machine with which the units of some ids started."""

    commit: str
    machine: str
    versions: Mapping[str, str | None]
    engines: Mapping[str, str]
    units: tuple[str, ...]


@dataclass(frozen=True)
class WorkTime:
    """From the first start to the last clock; some unit was worked at for `busy` seconds of it."""

    start: float
    end: float
    busy: float


@dataclass(frozen=True)
class TrainingData:
    """Numbers that were counted when a setup's training data were read, and its `overlap`: a line
    for each benchmark that has a training problem.
    """

    setup: str
    counts: Mapping[str, Any]
    overlap: tuple[str, ...]


@dataclass(frozen=True)
class CodeState:
    """A state of the code that so many `units` were made with: its commit, whether it was changed
    (`dirty`, None if unknown), the sha256 of its lock and the versions of its packages.
    """

    commit: str | None
    dirty: bool | None
    versions: Mapping[str, str | None]
    lock_sha256: str | None
    units: int


@dataclass(frozen=True)
class Provenance:
    """The origin of all numbers of a study.

    `submits` has command and UTC time of each submit that ran something, `machines` the hardware of
    all attempts, and `seconds` the wall-clock of each unit with its evaluators. `time` is None
    where nothing was clocked.
    """

    submits: tuple[tuple[str, str], ...]
    origins: tuple[Origin, ...]
    machines: tuple[str, ...]
    time: WorkTime | None
    seconds: Mapping[str, float]
    data: tuple[TrainingData, ...]


def provenance(study: Study) -> Provenance:
    """Read it from the run directories and the results folder."""
    started = [(unit.id, study.reader(unit)) for unit in study.units]
    started = [(unit_id, run) for unit_id, run in started if run.started]
    hosts: dict[str, None] = {}  # a dict for an ordered set
    for _, run in started:
        for attempt in run.attempts():
            hosts[hardware_text(attempt.get("host", {}))] = None
    lines = submits(folder_of(study.experiment.name, study.runs))
    return Provenance(
        submits=tuple((line["command"], line["at"][:16].replace("T", " ")) for line in lines),
        origins=_origins(started),
        machines=tuple(sorted(hosts.keys() - {""})),
        time=work_time(run for _, run in started),
        seconds={unit_id: sum(seconds_spent(run)) for unit_id, run in started},
        data=tuple(_data(study)),
    )


def _origins(started: Iterable[tuple[str, RunReader]]) -> tuple[Origin, ...]:
    """Each origin once, in the order of its first unit."""
    documents: dict[str, Document] = {}
    units: dict[str, list[str]] = {}
    for unit_id, run in started:
        # Models differ from setup to setup; without them most units share one origin.
        origin = {key: value for key, value in run.provenance().items() if key != "models"}
        text = json.dumps(origin, sort_keys=True)
        documents[text] = origin
        units.setdefault(text, []).append(unit_id)
    origins = []
    for text, origin in documents.items():
        host = origin.get("host", {})
        machine = filter(None, [host.get("name"), host.get("system"), hardware_text(host)])
        origins.append(
            Origin(
                commit=_commit_text(origin),
                machine=", ".join(machine),
                versions=dict(sorted(origin.get("versions", {}).items())),
                engines=origin.get("engine") or {},
                units=tuple(units[text]),
            )
        )
    return tuple(origins)


def code_states(study: Study) -> list[CodeState]:
    """Each state of the code that a study's units were made with."""
    units = Counter[str]()  # by the state as JSON, since a dict is no key
    for unit in study.units:
        origin = study.reader(unit).provenance()
        dirty = None if origin.get("dirty_diff") is None else bool(origin["dirty_diff"])
        state = {"commit": origin.get("commit"), "dirty": dirty}
        units[json.dumps(state | {"versions": origin.get("versions", {})}, sort_keys=True)] += 1
    states = []
    for text, count in sorted(units.items()):
        state = json.loads(text)
        lock = file_sha256_at(state["commit"], LOCK) if state["commit"] else None
        states.append(CodeState(**state, lock_sha256=lock, units=count))
    return states


def _commit_text(origin: Document) -> str:
    """`1a2b3c… with uncommitted changes`."""
    if origin.get("commit") is None:
        return "unknown: the source was no checkout"
    if origin.get("dirty_diff") is None:
        return f"{origin['commit']} (whether anything was changed is unknown)"
    return f"{origin['commit']}{' with uncommitted changes' if origin['dirty_diff'] else ''}"


def hardware_text(host: Document) -> str:
    """`2 × H100, 8 cores of AMD EPYC, x86_64`."""
    parts = []
    for name, count in sorted(Counter(host.get("gpus") or []).items()):
        parts.append(f"{count} × {name}")
    cpu, cores = host.get("cpu"), host.get("cores")
    if cpu:
        parts.append(f"{cores} cores of {cpu}" if cores else cpu)
    return ", ".join(filter(None, [*parts, host.get("machine")]))


def work_time(runs: Iterable[RunReader]) -> WorkTime | None:
    """The time of the work on units, by attempts up to their last clock and by evaluators."""
    spans: list[tuple[float, float]] = []
    for run in runs:
        attempts, evaluators = worked(run)
        spans += attempts + evaluators
    if not spans:
        return None
    spans.sort()
    reached, busy = float("-inf"), 0.0
    for start, end in spans:
        # Units that ran side by side count once.
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return WorkTime(spans[0][0], reached, busy)


def _data(study: Study) -> Iterator[TrainingData]:
    """The training data of each setup; twice only where its units read different ones."""
    for name, setup in study.experiment.setups.items():
        documents: dict[str, Document] = {}
        for unit in study.units_of(name):
            document = study.reader(unit).document("data.json")
            if document:
                documents[json.dumps(document, sort_keys=True)] = document
        for document in documents.values():
            counts = dict(document)
            overlap = counts.pop("overlap", {})
            lines = overlap_lines(setup, overlap, counts.get("prompts", 0))
            yield TrainingData(name, counts, tuple(lines))


def leaves(values: Document, between: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a nested document, each with the keys that lead to it."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, between, f"{prefix}{key}{between}")
        else:
            yield f"{prefix}{key}", value
