"""Where every unit of an experiment stands, from the run directories alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator import grid, selection
from orchestrator.config import Experiment, Setup
from orchestrator.grid import Unit
from orchestrator.rundir import RunReader
from orchestrator.wants import wants

STATES = ("done", "running", "failed", "interrupted", "queued", "waiting")


@dataclass(frozen=True)
class UnitStatus:
    """`state` is one of STATES; `score` is the best mean pass@1 so far, in [0, 1], at `best_step`."""

    id: str
    setup: str
    label: str
    kind: str
    seed: int
    state: str
    step: int
    steps: int
    loss: float | None
    score: float | None
    best_step: int | None
    seconds_left: float | None
    error: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def collect(experiment: Experiment, units: list[Unit], runs: Path) -> list[UnitStatus]:
    """Status of each unit, in the order of `units`."""
    wanted = wants(experiment, units, runs)
    return [unit_status(unit, experiment.setups[unit.setup], runs, unit.id in wanted) for unit in units]


def unit_status(unit: Unit, setup: Setup, runs: Path, wanted: bool) -> UnitStatus:
    """Status of one unit, of which samples are `wanted` or not; safe while it runs."""
    run = RunReader(runs, unit.id)
    metrics = run.metrics()
    ids = list(grid.evaluation_ids(setup).values())
    best = None if unit.kind == "sft" else selection.best_step(run, ids)
    state = _state(unit, run, runs, wanted)
    return UnitStatus(
        id=unit.id,
        setup=unit.setup,
        label=unit.label,
        kind=unit.kind,
        seed=unit.seed,
        state=state,
        step=len(metrics) if state == "running" else run.next_step,
        steps=unit.steps,
        loss=metrics[-1].get("loss") if metrics else None,
        score=selection.mean_score(run, ids, best) if best is not None else None,
        best_step=best,
        seconds_left=_seconds_left(unit, run, len(metrics)) if state == "running" else None,
        error=run.error,
    )


def missing_units(experiment: Experiment, units: list[Unit], runs: Path) -> list[Unit]:
    """Units that still need work: training, or samples that are wanted now."""
    wanted = wants(experiment, units, runs)
    return [unit for unit in units if unit.id in wanted or not RunReader(runs, unit.id).trained]


def _state(unit: Unit, run: RunReader, runs: Path, wanted: bool) -> str:
    if run.running:
        return "running"
    if run.trained and not wanted:
        return "done"
    if run.error is not None:
        return "failed"
    if run.trained:
        return "queued"
    if run.started:
        return "interrupted"
    return "queued" if all(RunReader(runs, needed).trained for needed in unit.depends_on) else "waiting"


def _seconds_left(unit: Unit, run: RunReader, steps_done: int) -> float | None:
    """Mean wall-clock of what was done so far × what is left; evaluation is spread over the steps."""
    timing = run.timing()
    trained = sum(1 for row in timing if row["phase"] == "train")
    if not trained:
        return None
    return _seconds(timing) / trained * (unit.steps - steps_done)


def _seconds(timing: list[dict[str, Any]]) -> float:
    fields = ("rollout", "score", "reward", "learn", "seconds")
    return sum(row.get(field, 0.0) for row in timing for field in fields)
