"""Projects units and results onto what trackers show, from the run directories alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

from analysis.facts.curves import sequence_budgets
from analysis.facts.provenance import leaves
from analysis.facts.units import UnitScores, step_clocks, unit_scores
from analysis.labels import AVERAGE
from orchestrator.config import Experiment, Setup
from orchestrator.experiment.evaluation_protocol import FRESH
from orchestrator.experiment.units import Unit, label_of
from orchestrator.monitor.status import FamilyStatus, Overview
from orchestrator.monitor.unit_status import UnitStatus
from orchestrator.records.log import ROLLOUT
from orchestrator.records.rundir import RunReader
from orchestrator.selection.study import Study

# Outcomes of a unit: it may still go on, it reached its end, or it failed.
OPEN, FINISHED, FAILED = "open", "finished", "failed"

TrackedTable = tuple[list[Any], list[Any]]  # headings; rows, each a list


@dataclass(frozen=True)
class Projection:
    """A unit as trackers show it: rows by step, flat configuration, summary, tags and outcome."""

    unit: Unit
    rows: dict[int, dict[str, Any]]
    config: dict[str, Any]
    summary: dict[str, Any]
    tags: list[str]
    outcome: str
    run: RunReader = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """`TRB epsilon0=0.05 K=12 s0 · toy`: distinctive parts first, since lists cut names."""
        return f"{self.unit.label} s{self.unit.seed} · {self.unit.setup}"

    @property
    def content(self) -> list[Any]:
        """All content as JSON values; if it has changed, trackers must show it again."""
        return [list(self.rows.items()), self.config, self.summary, self.tags, self.outcome]

    @property
    def is_empty(self) -> bool:
        """Whether it shows nothing: no row and no failure."""
        return not self.rows and self.summary["state"] != "failed"

    def clock(self) -> dict[int, float]:
        """Step → seconds since 1970 at which its training ended, as far as that was logged."""
        ended = {}
        for step, clock in step_clocks(self.run).items():
            if clock.ended is not None:
                ended[step] = clock.ended
        return ended


@dataclass(frozen=True)
class Results:
    """The results tables of an experiment by name, the sentences below them, and its progress.

    There are no tables before the first score. `machines` are those of `facts.units.machines_now`.
    """

    experiment: Experiment
    tables: dict[str, TrackedTable]
    notes: list[str]
    progress: dict[str, float] = field(default_factory=dict)
    machines: dict[str, dict[float, dict[str, float]]] = field(default_factory=dict)
    goes_on: bool = False

    @property
    def id(self) -> str:
        """The id beside those of units."""
        return results_id(self.experiment)

    @property
    def name(self) -> str:
        """The name that trackers show."""
        return f"Results · {self.experiment.name}"

    @property
    def content(self) -> list[Any]:
        """All content as JSON values; if it has changed, trackers must show it again."""
        return [self.tables, self.notes, self.progress, self.goes_on]


DISTANCES = (  # of a row of held_out.jsonl
    *("kl", "kl_error", "sequence_kl", "tail_student", "tail_teacher"),
    *("student_entropy", "teacher_entropy", "response_length"),
)


def project(
    study: Study, unit: Unit, known: UnitStatus, family: FamilyStatus | None, goes_on: bool
) -> Projection:
    """Project a unit of a `family`, None of one without scores; `goes_on` is True within a sweep.

    While a process works on the unit, its rows are all of those that it logged; a kill takes back
    those that were not committed.
    """
    run, confirms = study.reader(unit), known.confirms is not None
    scores = unit_scores(run, study.evaluation_ids(unit.setup, FRESH if confirms else 0))
    rows = projected_rows(run, scores, unit, uncommitted=known.state == "running")
    summary: dict[str, Any] = {"state": known.state}
    tags = [label_of(unit.kind, unit.method, {}), unit.setup]
    if unit.has_scores:
        summary |= _best(scores)
    if unit.is_trial:
        summary |= _selected(scores, known, family)
        tags.append("confirming" if confirms else "exploring")
    config, ends = _config(study.setup_of(unit), unit, run), outcome(known.state, goes_on)
    return Projection(unit, rows, config, summary, tags, ends, run)


def outcome(state: str, goes_on: bool) -> str:
    """Outcome of a unit in `state`; one to be worked on is open only while it or its sweep runs."""
    match state:
        case "done" | "stopped":
            return FINISHED
        case "failed":
            return FAILED
        case "running":
            return OPEN
    return OPEN if goes_on else FAILED


def projected_rows(
    run: RunReader, scores: UnitScores, unit: Unit, uncommitted: bool = False
) -> dict[int, dict[str, Any]]:
    """Rows by step k: metrics of update k, its seconds, scores and distance of the checkpoint after it.

    The budget ε·T stands beside the KL that a trust region spent on a response. A row is there once
    training went past its step, and may get a score later.
    """
    rows: dict[int, dict[str, Any]] = defaultdict(dict)
    logged = run.metrics() if uncommitted else run.committed_metrics()
    for metrics in logged:
        row = rows[metrics["step"]]
        for key, value in metrics.items():
            if key != "step" and value is not None:
                row[f"train/{key}"] = value
    for step, budget in sequence_budgets(unit, logged).items():
        rows[step - unit.first_batch]["train/sequence_budget"] = budget
    end = max([run.next_step, *(step + 1 for step in rows)])
    # Clock times are noted on their own, so some may belong to steps that a kill undid.
    for step, clock in step_clocks(run).items():
        if step in rows:
            for part, seconds in clock.parts.items():
                rows[step][f"time/{part}"] = seconds
            tokens, sampling = rows[step].get("train/response_tokens"), clock.parts.get(ROLLOUT)
            if tokens is not None and sampling:
                rows[step]["time/tokens_per_s"] = tokens / sampling
    for step, of_step in scores.by_step.items():
        for key, score in of_step.items():
            rows[step][f"eval/{'mean' if key == AVERAGE else key}"] = float(score)
    for measured in run.held_out():
        for name in DISTANCES:
            if (value := getattr(measured, name)) is not None:
                rows[measured.step][f"held_out/{name}"] = value
    return {step: rows[step] for step in sorted(rows) if run.trained or step < end}


# --- the results of an experiment ---


def results_id(experiment: Experiment) -> str:
    """Id under which trackers show an experiment's results; the same name gives the same id."""
    return f"results-{experiment.name}"


def progress_of(overview: Overview) -> dict[str, float]:
    """The numbers of a sweep's progress that are known, by name; hours are of GPUs or of cores."""
    device, left = overview.device.lower(), overview.device_hours_left
    numbers = {
        "units_done": overview.done,
        "units": len(overview.units) + overview.to_confirm,
        "units_failed": len(overview.in_state("failed")),
        "hours_left": None if overview.seconds_left is None else overview.seconds_left / 3600,
        f"{device}_hours_spent": overview.device_hours_spent,
        f"{device}_hours_left": None if left is None else left.mid,
        "tokens_per_s": overview.tokens_a_second,
    }
    return {f"progress/{name}": value for name, value in numbers.items() if value is not None}


# --- private ---


def _config(setup: Setup, unit: Unit, run: RunReader) -> dict[str, Any]:
    """All values of `config.json` by names such as `training.optimizer.lr`, and the run's code.

    Before the unit starts, these are the values with which it would start. Names without a value
    are left out.
    """
    started = run.config() if run.started else {}
    made_with = run.provenance() if run.started else {}
    host = made_with.get("host", {})
    named = {
        "method": unit.method or unit.kind,
        "setup": unit.setup,
        "seed": unit.seed,
        "kind": unit.kind,
    }
    commit = made_with.get("commit")
    code = {
        "commit": commit,
        "uncommitted_changes": bool(made_with.get("dirty_diff")) if commit else None,
        "versions": made_with.get("versions", {}),
        "cpu": host.get("cpu"),
        "gpus": host.get("gpus") or None,
    }
    whole = started.get("setup", asdict(setup)) | {"runtime": started.get("runtime", {})} | code
    flat = {key: value for key, value in leaves(whole, ".") if value is not None}
    return flat | named | unit.knobs


def _selected(scores: UnitScores, known: UnitStatus, family: FamilyStatus | None) -> dict[str, Any]:
    """Whether a trial is of its family's selected setting so far, at which step, and its score there.

    Empty before the family has a selected checkpoint. A confirming trial is always of one.
    """
    step = known.confirms or (family and family.step)
    if step is None:
        return {}
    if known.confirms is None and family and known.setting != family.setting:
        return {"selected": False}
    score = scores.by_step.get(step, {}).get(AVERAGE)
    of_run = {} if score is None else {"selected_score": float(score)}
    return {"selected": True, "selected_step": step} | of_run


def _best(scores: UnitScores) -> dict[str, Any]:
    """The best checkpoint, its scores and the number of candidates; empty without evaluations."""
    if scores.best is None:
        return {}
    of_step = dict(scores.by_step[scores.best])
    mean = float(of_step.pop(AVERAGE))
    known = {"best_step": scores.best, "best_score": mean, "candidates": scores.candidates}
    return known | {f"best/{key}": float(score) for key, score in of_step.items()}
