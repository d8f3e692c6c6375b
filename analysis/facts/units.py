"""Units as trackers and `trials.csv` show them: their states, and the scores of all checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from analysis.labels import AVERAGE
from orchestrator.experiment.units import Unit
from orchestrator.monitor import status
from orchestrator.monitor.unit_status import UnitStatus
from orchestrator.records.clock import kept_steps
from orchestrator.records.rundir import RunReader
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.scores import benchmark_scores, best_step, exact_mean
from orchestrator.selection.study import Study


@dataclass(frozen=True)
class UnitScores:
    """Step → pass@1 in [0, 1] of each evaluated checkpoint of a unit, by benchmark.

    A checkpoint that lacks no benchmark has their mean under `avg`. `best` is the step that the
    unit alone would select; the results table may show another one.
    """

    by_step: Mapping[int, Mapping[str, Fraction]]
    best: int | None

    @property
    def candidates(self) -> int:
        """The checkpoints with all benchmarks, of which the best one was taken."""
        return sum(AVERAGE in scores for scores in self.by_step.values())


@dataclass(frozen=True)
class StepClock:
    """When the training of a step ended, in seconds since 1970, and how long its parts took."""

    ended: float | None
    parts: Mapping[str, float]


def units_now(study: Study) -> Iterator[tuple[Unit, RunReader, UnitStatus]]:
    """Each unit with its directory and its status; those that confirm a choice come last."""
    study = with_confirmation(study.snapshot())
    for unit, known in zip(study.units, status.collect(study), strict=True):
        yield unit, study.reader(unit), known


def unit_scores(run: RunReader, ids: Mapping[str, str]) -> UnitScores:
    """The scores of a unit's checkpoints; `ids` are evaluation ids by benchmark."""
    known, by_step = list(ids.values()), dict[int, dict[str, Fraction]]()
    for step in sorted({step for each in known for step in run.evaluated_steps(each)}):
        scores = benchmark_scores(run, known, step)
        columns = dict(zip(ids, scores, strict=True)) | {AVERAGE: exact_mean(scores)}
        by_step[step] = {key: score for key, score in columns.items() if score is not None}
    return UnitScores(by_step, best_step(run, known))


def step_clocks(run: RunReader) -> dict[int, StepClock]:
    """Step → its clock; a step that ran again has that of its last attempt."""
    return {step: StepClock(row.at, row.parts) for step, row in kept_steps(run).items()}
