"""Where every unit of an experiment stands, from the run directories alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator import grid, selection
from orchestrator.config import Experiment, Setup
from orchestrator.grid import Unit
from orchestrator.rundir import RunReader

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
    return [unit_status(unit, experiment.setups[unit.setup], runs) for unit in units]


def unit_status(unit: Unit, setup: Setup, runs: Path) -> UnitStatus:
    """Status of one unit; safe while it runs."""
    run = RunReader(runs, unit.id)
    metrics = run.metrics()
    ids = list(grid.evaluation_ids(setup).values())
    means = {} if unit.kind == "sft" else selection.trajectory(run, ids)
    best = selection.highest(means)
    state = _state(unit, setup, run, runs)
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
        score=float(means[best]) if best is not None else None,
        best_step=best,
        seconds_left=_seconds_left(unit, run, len(metrics)) if state == "running" else None,
        error=run.error,
    )


def is_complete(unit: Unit, setup: Setup, run: RunReader) -> bool:
    """Trained, and every kept checkpoint has the wanted samples on every benchmark."""
    if not run.trained:
        return False
    if unit.kind == "sft":
        return True
    steps = [0] if unit.kind == "base_eval" else list(run.checkpoints())
    wanted = {eid: grid.samples_wanted(setup.evaluation, key) for key, eid in grid.evaluation_ids(setup).items()}
    return all(_samples(run, evaluation_id, step) >= n for evaluation_id, n in wanted.items() for step in steps)


def missing_units(experiment: Experiment, units: list[Unit], runs: Path) -> list[Unit]:
    """Units that still need work."""
    return [u for u in units if not is_complete(u, experiment.setups[u.setup], RunReader(runs, u.id))]


def _state(unit: Unit, setup: Setup, run: RunReader, runs: Path) -> str:
    if run.running:
        return "running"
    if is_complete(unit, setup, run):
        return "done"
    if run.error is not None:
        return "failed"
    if run.started:
        return "interrupted"
    return "queued" if all(RunReader(runs, needed).trained for needed in unit.depends_on) else "waiting"


def _samples(run: RunReader, evaluation_id: str, step: int) -> int:
    records = run.evaluation(evaluation_id, step)
    return records[0].n if records else 0


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
