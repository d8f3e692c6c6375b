"""Units as trackers and `trials.csv` show them: states, scores of all checkpoints, and machines."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from analysis.labels import AVERAGE
from orchestrator.experiment.units import Unit
from orchestrator.monitor import status
from orchestrator.monitor.unit_status import UnitStatus
from orchestrator.records.clock import kept_steps, token_rates
from orchestrator.records.machines import machine_rows
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


def look(study: Study) -> tuple[Study, status.Overview]:
    """The study of one moment, its confirming units among its units, and the state of the sweep."""
    study = with_confirmation(study.snapshot())
    return study, status.overview(study)


def units_now(study: Study) -> Iterator[tuple[Unit, RunReader, UnitStatus]]:
    """Each unit with its directory and its status; those that confirm a choice come last."""
    study, overview = look(study)
    for unit, known in zip(study.units, overview.units, strict=True):
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


def machines_now(study: Study) -> dict[str, dict[float, dict[str, float]]]:
    """The measurements of `machine_rows` for a study, with the `tokens_per_s` of each machine.

    That is the sum over the pieces of work that sampled there. A piece shows its rate for as long as
    it took, from its end on, so that a row never changes once it is there.
    """
    changes: dict[str, list[tuple[float, float]]] = defaultdict(list)  # host → (time, of the rate)
    for unit in study.units:
        for host, start, end, rate in token_rates(study.reader(unit)):
            changes[host] += [(end, rate), (2 * end - start, -rate)]
    machines = machine_rows(study.runs, study.experiment.name)
    for host, rows in machines.items():
        coming, rate = deque(sorted(changes[host])), None
        for at, row in rows.items():
            while coming and coming[0][0] <= at:
                rate = (rate or 0.0) + coming.popleft()[1]
            if rate is not None:
                row["tokens_per_s"] = max(0.0, round(rate, 1))
    return machines
