"""What a training step and a response cost in this experiment: measured in its runs, else planned in proportion.

A cost is the mean of the latest rows of the unit itself, else of its setup's units with the same method, else of its
setup. What nobody measured costs what `planning.plan` says, times the ratio of measured to planned seconds of what
was. As long as nothing at all was measured, nothing is known.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import fmean

from orchestrator.config import Experiment
from orchestrator.experiment.units import Unit
from orchestrator.planning import plan
from orchestrator.planning.evaluation import checkpoints_evaluated, evaluation_generations
from orchestrator.records.columns import EVALUATE, STEP_PARTS, TRAIN
from orchestrator.records.rundir import RunReader
from orchestrator.selection.study import Study

BLENDED, PLAIN = "blended step", "plain step"  # kinds of work; the others are the keys of benchmarks
RECENT = 20  # rows that say what something costs now


@dataclass
class Costs:
    """Seconds of one training step or one response, by kind of work and by where it was measured."""

    experiment: Experiment
    rows: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    measured: float = 0.0  # seconds of all rows
    planned: float = 0.0  # what the plan says of the same

    def of(self, unit: Unit, kind: str) -> float | None:
        """Seconds of one step (BLENDED, PLAIN) or one response (a benchmark's key) of a unit; None if unknown."""
        for where in _sources(unit):
            if (where, kind) in self.rows:
                return fmean(self.rows[where, kind][-RECENT:])
        return self.measured / self.planned * _planned(self.experiment, unit)[kind] if self.planned else None


def measure(study: Study) -> Costs:
    """What the wall-clock rows of the units say."""
    costs = Costs(study.experiment)
    for unit in study.units:
        found = _measured(study.runs, unit.id, plan.teacher_online_steps(unit), study.reader(unit).timing_stamp())
        if not found:
            continue
        planned = _planned(study.experiment, unit)
        for kind, seconds in found:
            for where in _sources(unit):
                costs.rows[where, kind].append(seconds)
            costs.measured += seconds
            costs.planned += planned.get(kind, 0.0)
    return costs


def _sources(unit: Unit) -> tuple[str, str, str]:
    """Where a cost of a unit may be known from, nearest first."""
    return unit.id, f"{unit.setup} {unit.method or unit.kind}", unit.setup


@lru_cache(maxsize=4096)
def _measured(runs: Path, unit_id: str, blended: int, _stamp: tuple[int, int] | None) -> list[tuple[str, float]]:
    """(kind of work, seconds of one step or response) of each row, read once while the file does not change.

    The first row of each kind holds start-up and is left out as soon as there are others.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for row in RunReader(runs, unit_id).timing():
        if row.get("phase") == TRAIN:
            kind = BLENDED if row["step"] < blended else PLAIN
            found[kind].append(sum(row.get(name, 0.0) for name in STEP_PARTS))
        elif row.get("phase") == EVALUATE and row.get("responses"):
            found[row["benchmark"]].append(row["seconds"] / row["responses"])
    return [(kind, seconds) for kind, all_rows in found.items() for seconds in all_rows[1:] or all_rows]


def _planned(experiment: Experiment, unit: Unit) -> dict[str, float]:
    """What the plan says that one step and one response of a unit cost: between its low and its high estimate."""
    setup = experiment.setups[unit.setup]
    low, high = (plan.phase_seconds(setup, unit, experiment.runtime, scenario) for scenario in (plan.LOW, plan.HIGH))
    seconds = {phase: (low[phase] + high[phase]) / 2 for phase in plan.PHASES}
    generations = evaluation_generations(setup)
    responses = checkpoints_evaluated(unit, setup) * sum(generations.values())
    a_step = sum(seconds[phase] for phase in plan.PHASES if phase != EVALUATE) / max(1, unit.steps)
    costs = dict.fromkeys((BLENDED, PLAIN), a_step)
    return costs | dict.fromkeys(generations, seconds[EVALUATE] / responses if responses else 0.0)
