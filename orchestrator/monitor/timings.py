"""What a training step and a response cost in this experiment: measured in its runs, else planned in proportion.

A cost is the mean of the latest rows of the unit itself, else of its setup's units with the same method, else of its
setup. What nobody measured costs what `planning.costs` says, times the ratio of measured to planned seconds of what
was. As long as nothing at all was measured, nothing is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

from orchestrator.experiment.units import Unit
from orchestrator.planning.costs import BLENDED, OTHER, PLAIN, SUPERVISED, SetupCosts
from orchestrator.planning.measured import clocked
from orchestrator.planning.steps import teacher_online_steps
from orchestrator.records.rundir import TIMING, RunReader
from orchestrator.selection.study import Study

RECENT = 20  # rows that say what something costs now


@dataclass
class Costs:
    """Seconds of one training step or one response, by kind of work and by where it was measured."""

    plans: Mapping[str, SetupCosts]  # what the plan says, by setup
    rows: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    measured: float = 0.0  # seconds of all rows
    planned: float = 0.0  # what the plan says of the same

    def of(self, unit: Unit, kind: str) -> float | None:
        """Seconds of one step (BLENDED, PLAIN) or one response (a benchmark's key) of a unit; None if unknown."""
        for where in _sources(unit):
            if (where, kind) in self.rows:
                return fmean(self.rows[where, kind][-RECENT:])
        return self.measured / self.planned * _planned(self.plans[unit.setup], unit)[kind] if self.planned else None


def measure(study: Study) -> Costs:
    """What the wall-clock rows of the units say."""
    setups, runtime = study.experiment.setups, study.experiment.runtime
    costs = Costs({name: SetupCosts(setup, runtime, setup.engine.rollout) for name, setup in setups.items()})
    for unit in study.units:
        found = _measured(study, unit)
        if not found:
            continue
        planned = _planned(costs.plans[unit.setup], unit)
        for kind, seconds in found:
            for where in _sources(unit):
                costs.rows[where, kind].append(seconds)
            costs.measured += seconds
            costs.planned += planned.get(kind, 0.0)
    return costs


def _sources(unit: Unit) -> tuple[str, str, str]:
    """Where a cost of a unit may be known from, nearest first."""
    return unit.id, f"{unit.setup} {unit.method or unit.kind}", unit.setup


def _measured(study: Study, unit: Unit) -> list[tuple[str, float]]:
    """(kind of work, seconds of one step or response) of each row of a unit."""
    run, blended = study.reader(unit), teacher_online_steps(unit)
    return run.derived(TIMING, f"seconds by kind of work, {blended} blended", lambda: _seconds_of_rows(run, blended))


def _seconds_of_rows(run: RunReader, blended: int) -> list[tuple[str, float]]:
    rows = clocked(run, blended)
    found = [(kind, sum(parts.values())) for kind, steps in rows.steps.items() for parts in steps]
    return found + [(benchmark, seconds) for benchmark, rows in rows.responses.items() for seconds in rows]


def _planned(costs: SetupCosts, unit: Unit) -> dict[str, float]:
    """What the plan says, in its middle estimate, that one step and one response of a unit cost."""
    alone = SUPERVISED if unit.is_supervised else PLAIN
    planned = {PLAIN: _step_seconds(costs, alone)}
    if teacher_online_steps(unit):
        planned[BLENDED] = _step_seconds(costs, BLENDED)
    return planned | {key: costs.response(key).mid for key in costs.setup.evaluation.benchmarks}


def _step_seconds(costs: SetupCosts, kind: str) -> float:
    """Seconds of a step's parts that `timing.jsonl` has as well."""
    return sum(seconds.mid for phase, seconds in costs.step(kind).items() if phase != OTHER)
