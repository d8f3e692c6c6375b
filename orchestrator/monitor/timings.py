"""Seconds of a training step and of a response in this experiment: measured in its runs, else
planned in proportion.

A cost is the mean of the latest rows of the unit itself, else that of its setup's units with the
same method, else that of its setup. Unmeasured work costs its planned seconds, scaled by measured ÷
planned of the work that was measured. Before any measurement GPUs cost the plan's seconds, and
costs of cores are unknown.

The low and the high estimate are those of the fastest and the slowest unit of the nearest source
with several of them. Where there is none they are as far from the middle one as the plan's are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean

from orchestrator.experiment.units import Unit
from orchestrator.planning.calibrated import gpu_here, read_calibrations
from orchestrator.planning.costs import BLENDED, OTHER, PLAIN, SUPERVISED, SetupCosts
from orchestrator.planning.measured import Measured, clocked
from orchestrator.planning.ranges import Range
from orchestrator.planning.steps import teacher_online_steps
from orchestrator.records.columns import ROLLOUT, TRAIN
from orchestrator.records.rundir import METRICS, TIMING, RunReader
from orchestrator.selection.study import Study

RECENT = 20  # rows that say what something costs now


@dataclass
class Costs:
    """Seconds of one training step or one response, by kind of work and by where it was measured."""

    plans: Mapping[str, SetupCosts]  # what the plan says, by setup
    lately: dict[tuple[str, str], float] = field(default_factory=dict)  # by the id of a unit
    means: dict[tuple[str, str], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )  # one for each unit
    measured: float = 0.0  # seconds of all rows
    planned: float = 0.0  # what the plan says of the same

    def of(self, unit: Unit, kind: str) -> float | None:
        """Seconds of one step (BLENDED, PLAIN) or one response (a benchmark's key) of a unit; None
        if unknown.
        """
        if (unit.id, kind) in self.lately:
            return self.lately[unit.id, kind]
        for where in _sources(unit):
            if (where, kind) in self.means:
                return fmean(self.means[where, kind])
        return (
            self.measured / self.planned * self._planned(unit, kind).mid if self.planned else None
        )

    def range(self, unit: Unit, kind: str) -> Range | None:
        """As `of`, with a low and a high estimate."""
        key = unit.id, kind
        if key not in self._ranges:
            self._ranges[key] = self._range(unit, kind)
        return self._ranges[key]

    def _range(self, unit: Unit, kind: str) -> Range | None:
        middle = self.of(unit, kind)
        if middle is None:
            return self._planned(unit, kind) if unit.placement.gpus else None
        for where in _sources(unit):
            means = self.means.get((where, kind), [])
            if len(means) > 1:
                mean = fmean(means)
                return Range(middle * min(means) / mean, middle, middle * max(means) / mean)
        planned = self._planned(unit, kind)
        return planned * (middle / planned.mid)

    def _planned(self, unit: Unit, kind: str) -> Range:
        return planned_cost(self.plans[unit.setup].on(unit.placement), unit.is_supervised, kind)

    @property
    def calibrated(self) -> bool:
        """Whether costs rest on a calibration of the card, since no run has measured any yet."""
        return not self.measured and any(plan.sources for plan in self.plans.values())

    @cached_property
    def _ranges(self) -> dict[tuple[str, str], Range | None]:
        return {}


def measure(study: Study) -> Costs:
    """Read the wall-clock rows of the units."""
    setups, runtime = study.experiment.setups, study.experiment.runtime
    calibrations = read_calibrations(study.runs)
    gpu, known = (
        gpu_here(calibrations).part(runtime.placement.gpu_share),
        Measured(calibrations=calibrations),
    )
    plans = {
        name: known.costs(name, setup, runtime, setup.engine.sampler, gpu)
        for name, setup in setups.items()
    }
    costs = Costs(plans)
    for unit in study.units:
        found = _measured(study, unit)
        if not found:
            continue
        plan = costs.plans[unit.setup].on(unit.placement)
        kinds = {
            BLENDED,
            PLAIN,
            *plan.setup.evaluation.benchmarks,
        }  # a runs folder may hold other benchmarks, too
        by_kind: dict[str, list[float]] = defaultdict(list)
        for kind, seconds in found:
            if kind in kinds:
                by_kind[kind].append(seconds)
        for kind, seconds in by_kind.items():
            costs.lately[unit.id, kind] = fmean(seconds[-RECENT:])
            for where in _sources(unit):
                costs.means[where, kind].append(fmean(seconds))
            costs.measured += sum(seconds)
            costs.planned += planned_cost(plan, unit.is_supervised, kind).mid * len(seconds)
    return costs


def tokens_a_second(run: RunReader) -> float | None:
    """Tokens of rollouts that a unit samples in a second of sampling, over its latest steps; None
    before the first.
    """

    def rollouts() -> list[tuple[int, float]]:
        return [(row["step"], row[ROLLOUT]) for row in run.timing() if row["phase"] == TRAIN][
            -RECENT:
        ]

    def lengths() -> list[tuple[int, int]]:
        return [
            (row["step"], row["response_tokens"])
            for row in run.metrics()[-RECENT:]
            if "response_tokens" in row
        ]

    seconds = dict(run.derived(TIMING, "seconds of the latest rollouts", rollouts))
    tokens = dict(run.derived(METRICS, "tokens of the latest rollouts", lengths))
    steps = seconds.keys() & tokens.keys()
    sampling = sum(seconds[step] for step in steps)
    return sum(tokens[step] for step in steps) / sampling if sampling else None


def _sources(unit: Unit) -> tuple[str, str]:
    """From which units a cost of a unit may be known, nearest first."""
    return f"{unit.setup} {unit.method or unit.kind}", unit.setup


def _measured(study: Study, unit: Unit) -> list[tuple[str, float]]:
    """(kind of work, seconds of one step or response) of each row of a unit."""
    run, blended = study.reader(unit), teacher_online_steps(unit)
    return run.derived(
        TIMING,
        f"seconds by kind of work, {blended} blended",
        lambda: _seconds_of_rows(run, blended),
    )


def _seconds_of_rows(run: RunReader, blended: int) -> list[tuple[str, float]]:
    rows = clocked(run, blended)
    found = [(kind, sum(parts.values())) for kind, steps in rows.steps.items() for parts in steps]
    return found + [
        (benchmark, seconds) for benchmark, rows in rows.responses.items() for seconds in rows
    ]


def planned_cost(costs: SetupCosts, supervised: bool, kind: str) -> Range:
    """Planned seconds of one step or one response, of distillation or of the supervised stage."""
    if kind in (BLENDED, PLAIN):
        phases = costs.step(SUPERVISED if supervised else kind)
        # Only the parts of a step that `timing.jsonl` has as well.
        return Range.total(seconds for phase, seconds in phases.items() if phase != OTHER)
    return costs.response(kind)
