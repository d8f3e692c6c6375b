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
from orchestrator.experiment import evaluation_protocol
from orchestrator.experiment.units import Unit
from orchestrator.records.rundir import RunReader

# Outcomes of a unit: it may still go on, it reached its end, or it failed.
OPEN, FINISHED, FAILED = "open", "finished", "failed"

TrackedTable = tuple[list[Any], list[Any]]  # headings; rows, each a list


@dataclass(frozen=True)
class Projection:
    """A unit as trackers show it: rows by step, the flat configuration, a summary and the outcome."""

    unit: Unit
    rows: dict[int, dict[str, Any]]
    config: dict[str, Any]
    summary: dict[str, Any]
    outcome: str
    run: RunReader = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """`TRB epsilon0=0.05 K=12 s0 · toy`: distinctive parts first, since lists cut names."""
        return f"{self.unit.label} s{self.unit.seed} · {self.unit.setup}"

    @property
    def content(self) -> list[Any]:
        """All content as JSON values; if it has changed, trackers must show it again."""
        return [list(self.rows.items()), self.config, self.summary, self.outcome]

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
    """The results tables of an experiment by name, and the sentences below them."""

    experiment: Experiment
    tables: dict[str, TrackedTable]
    notes: list[str]

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
        return [self.tables, self.notes]


DISTANCES = (  # of a row of held_out.jsonl
    *("kl", "kl_error", "sequence_kl", "tail_student", "tail_teacher"),
    *("student_entropy", "teacher_entropy", "response_length"),
)


def project(setup: Setup, unit: Unit, run: RunReader, state: str, goes_on: bool) -> Projection:
    """Project a unit; `state` is one of `unit_status.STATES`, `goes_on` is True within a sweep."""
    scores = unit_scores(run, evaluation_protocol.evaluation_ids(setup))
    rows = projected_rows(run, scores, unit)
    summary = {"state": state} | (_best(scores) if unit.has_scores else {})
    return Projection(unit, rows, _config(setup, unit, run), summary, outcome(state, goes_on), run)


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


def projected_rows(run: RunReader, scores: UnitScores, unit: Unit) -> dict[int, dict[str, Any]]:
    """Rows by step k: metrics of update k, its seconds, scores and distance of the checkpoint after it.

    The budget ε·T stands beside the KL that a trust region spent on a response. A row is final once
    training went past its step; until then it may still get a score.
    """
    rows: dict[int, dict[str, Any]] = defaultdict(dict)
    logged = run.committed_metrics()
    for metrics in logged:
        row = rows[metrics["step"]]
        for key, value in metrics.items():
            if key != "step" and value is not None:
                row[f"train/{key}"] = value
    for step, budget in sequence_budgets(unit, logged).items():
        rows[step - unit.first_batch]["train/sequence_budget"] = budget
    # Clock times are noted before the commit, so some may belong to steps that a kill undid.
    for step, clock in step_clocks(run).items():
        if step in rows:
            for part, seconds in clock.parts.items():
                rows[step][f"time/{part}"] = seconds
    for step, of_step in scores.by_step.items():
        for key, score in of_step.items():
            rows[step][f"eval/{'mean' if key == AVERAGE else key}"] = float(score)
    for measured in run.held_out():
        for name in DISTANCES:
            if (value := getattr(measured, name)) is not None:
                rows[measured.step][f"held_out/{name}"] = value
    # W&B takes each step once: a row that was sent cannot get the score of a later evaluation.
    return {step: rows[step] for step in sorted(rows) if run.trained or step < run.next_step}


# --- the results of an experiment ---


def results_id(experiment: Experiment) -> str:
    """Id under which trackers show an experiment's results; the same name gives the same id."""
    return f"results-{experiment.name}"


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


def _best(scores: UnitScores) -> dict[str, Any]:
    """The best checkpoint, its scores and the number of candidates; empty without evaluations."""
    if scores.best is None:
        return {}
    of_step = dict(scores.by_step[scores.best])
    mean = float(of_step.pop(AVERAGE))
    known = {"best_step": scores.best, "best_score": mean, "candidates": scores.candidates}
    return known | {f"best/{key}": float(score) for key, score in of_step.items()}
