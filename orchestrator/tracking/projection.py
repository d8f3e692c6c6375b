"""Units as W&B runs, from the run directories alone. Needs no wandb."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from orchestrator.config import Experiment, Setup
from orchestrator.experiment import evaluation_protocol
from orchestrator.experiment.units import Unit
from orchestrator.records.columns import STEP_PARTS, TRAIN
from orchestrator.records.rundir import RunReader
from orchestrator.selection import scores as selection

# How a W&B run stands: may still go on, came to its end, or did not.
OPEN, FINISHED, FAILED = "open", "finished", "failed"

Table = tuple[list[Any], list[Any]]  # headings; rows, each a list


@dataclass(frozen=True)
class Projection:
    """A unit as a W&B run: rows by step, the flat configuration, the summary, and how the run stands."""

    unit: Unit
    rows: dict[int, dict[str, Any]]
    config: dict[str, Any]
    summary: dict[str, Any]
    outcome: str

    @property
    def name(self) -> str:
        """The name, distinctive parts first, since lists cut names off: `TRB epsilon0=0.05 K=12 s0 · arithmetic`."""
        return f"{self.unit.label} s{self.unit.seed} · {self.unit.setup}"

    @property
    def content(self) -> list[Any]:
        """All of it as JSON; another content has to be sent."""
        return [list(self.rows.items()), self.config, self.summary, self.outcome]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show: no row, and no failure either."""
        return not self.rows and self.summary["state"] != "failed"


def project(setup: Setup, unit: Unit, run: RunReader, state: str, goes_on: bool) -> Projection:
    """Project a unit onto a W&B run; `state` is one of `unit_status.STATES`, `goes_on` is True within a sweep."""
    rows = projected_rows(setup, run)
    summary = {"state": state} | _best(unit, setup, run)
    return Projection(unit, rows, _config(setup, unit, run), summary, outcome(state, goes_on))


def outcome(state: str, goes_on: bool) -> str:
    """How a W&B run stands whose unit is in `state`: what neither ended nor runs is open only while the sweep runs."""
    match state:
        case "done":
            return FINISHED
        case "failed":
            return FAILED
        case "running":
            return OPEN
    return OPEN if goes_on else FAILED


def projected_rows(setup: Setup, run: RunReader) -> dict[int, dict[str, Any]]:
    """W&B rows by step: committed metrics of update k, its seconds, and scores of the checkpoint after k updates.

    A row is final once training went past its step; until then a later score could still belong to it.
    """
    rows: dict[int, dict[str, Any]] = defaultdict(dict)
    for metrics in run.committed_metrics():
        rows[metrics["step"]] |= {f"train/{key}": v for key, v in metrics.items() if key != "step" and v is not None}
    # Clock times are noted before the commit, so there may be some of steps that a kill took back.
    for step, seconds in _seconds(run).items():
        if step in rows:
            rows[step] |= seconds
    ids = evaluation_protocol.evaluation_ids(setup)
    evaluated: set[int] = set()
    for evaluation_id in ids.values():
        evaluated |= set(run.evaluated_steps(evaluation_id))
    for step in sorted(evaluated):
        scores = selection.benchmark_scores(run, list(ids.values()), step)
        rows[step] |= _present({f"eval/{key}": score for key, score in zip(ids, scores, strict=True)})
        rows[step] |= _present({"eval/mean": selection.exact_mean(scores)})
    # W&B takes each step once: a row that was sent cannot get the score of a checkpoint that comes later.
    return {step: rows[step] for step in sorted(rows) if run.trained or step < run.next_step}


# --- the results of an experiment ---


def results_id(experiment: Experiment) -> str:
    """W&B id of the run that holds an experiment's results; the same name is the same run."""
    return f"results-{experiment.name}"


# --- private ---


def _config(setup: Setup, unit: Unit, run: RunReader) -> dict[str, Any]:
    """Everything that `config.json` holds, by dotted names such as `training.optimizer.lr`, and the code it ran with.

    Before a unit was started it is what the unit would be started with. Nothing is under a name without a value.
    """
    started = run.config() if run.started else {}
    made_with = run.provenance() if run.started else {}
    host = made_with.get("host", {})
    named = {"method": unit.method or unit.kind, "setup": unit.setup, "seed": unit.seed, "kind": unit.kind}
    code = {
        "commit": made_with.get("commit"),
        "uncommitted_changes": bool(made_with.get("dirty_diff")) if made_with.get("commit") else None,
        "versions": made_with.get("versions", {}),
        "cpu": host.get("cpu"),
        "gpus": host.get("gpus") or None,
    }
    whole = started.get("setup", asdict(setup)) | {"runtime": started.get("runtime", {})} | code
    return dict(_flat(whole)) | named | unit.knobs


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def _best(unit: Unit, setup: Setup, run: RunReader) -> dict[str, Any]:
    """The best checkpoint, out of how many, and its score on each benchmark; empty without evaluations."""
    ids = evaluation_protocol.evaluation_ids(setup)
    known = list(ids.values())
    best = selection.best_step(run, known) if unit.has_scores else None
    if best is None:
        return {}
    scores = selection.benchmark_scores(run, known, best)
    return {
        "best_step": best,
        "best_score": selection.mean_score(run, known, best),
        "candidates": len(selection.trajectory(run, known)),
        **_present({f"best/{benchmark}": score for benchmark, score in zip(ids, scores, strict=True)}),
    }


def _present(scores: Mapping[str, Fraction | None]) -> dict[str, float]:
    """The scores that are there, as numbers for W&B; a missing one has no name either."""
    return {name: float(score) for name, score in scores.items() if score is not None}


def _seconds(run: RunReader) -> dict[int, dict[str, float]]:
    """Seconds of each part of a step, by step; of a step taken again after a kill, the last time."""
    seconds = {}
    for row in run.timing():
        if row["phase"] == TRAIN:
            seconds[row["step"]] = {f"time/{part}": row[part] for part in STEP_PARTS if part in row}
    return seconds
