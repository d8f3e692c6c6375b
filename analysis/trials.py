"""One row for each unit of an experiment: where it stands and what it scored; `trials.csv` in the results folder."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from io import StringIO
from typing import Any

from analysis.costs import unit_cost
from analysis.labels import BASE
from orchestrator.monitor import status
from orchestrator.selection import scores as selection
from orchestrator.selection.study import Study

PERCENT = 100
COLUMNS = ("unit", "setup", "kind", "method", "setting", "seed", "state", "step", "steps", "best_step", "avg")
LAST = ("seconds",)


@dataclass(frozen=True)
class Trial:
    """A unit. `scores` are those of its own best checkpoint, exact, in percent, the average under `avg`.

    The checkpoint that a table shows may be another: it is the best mean over the seeds of a setting. `seconds` is the
    wall-clock of training and evaluation as logged, None where nothing was.
    """

    unit: str
    setup: str
    kind: str
    method: str  # `base` for the untrained student, empty for the supervised stage
    knobs: Mapping[str, Any]
    seed: int
    state: str
    step: int
    steps: int
    best_step: int | None
    average: Fraction | None
    benchmarks: Mapping[str, Fraction]
    seconds: float | None

    @property
    def setting(self) -> str:
        """Knobs for people: `epsilon0=0.05 K=12`."""
        return " ".join(f"{name}={value:g}" for name, value in self.knobs.items())


def read_trials(study: Study) -> list[Trial]:
    """Every unit in the order of the grid."""
    found = []
    study = study.snapshot()
    for unit, known in zip(study.units, status.collect(study), strict=True):
        run = study.reader(unit)
        scores: dict[str, Fraction] = {}
        if known.best_step is not None:
            ids = study.evaluation_ids(unit.setup)
            values = selection.benchmark_scores(run, list(ids.values()), known.best_step)
            scores = {key: PERCENT * value for key, value in zip(ids, values, strict=True) if value is not None}
        average = selection.exact_mean(list(scores.values()))
        method = BASE if unit.is_untrained else unit.method or ""
        seconds = unit_cost(study, unit).total_seconds if run.started else None
        found.append(
            Trial(
                *(unit.id, unit.setup, unit.kind, method, unit.knobs, unit.seed, known.state, known.step, known.steps),
                *(known.best_step, average, scores, seconds),
            )
        )
    return found


def to_csv(trials: Sequence[Trial]) -> str:
    """COLUMNS, a column for each benchmark, LAST; scores in percent with two decimals, missing numbers empty."""
    benchmarks = list(dict.fromkeys(key for trial in trials for key in trial.benchmarks))
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*COLUMNS, *benchmarks, *LAST))
    for trial in trials:
        scores = [trial.average, *(trial.benchmarks.get(key) for key in benchmarks)]
        texts = ["" if score is None else f"{float(score):.2f}" for score in scores]
        facts = (trial.unit, trial.setup, trial.kind, trial.method, trial.setting, trial.seed, trial.state)
        best = "" if trial.best_step is None else trial.best_step
        seconds = "" if trial.seconds is None else f"{trial.seconds:.1f}"
        writer.writerow((*facts, trial.step, trial.steps, best, *texts, seconds))
    return out.getvalue()
