"""Seconds of steps and responses: measured where runs were clocked, else planned and scaled.

The plan asks for units that have not begun. `Measured.costs` answers with the seconds of
`planning.costs`, times measured ÷ planned of each phase: of all finished directories together in
the middle estimate, of the fastest and the slowest directory in the low and the high one. Phases
that no directory measured have the factors of `planning.calibrated`, where a card of the kind was.

Status and the limit on device-hours ask for the units at hand. `StudySeconds.of` answers with the
mean of the unit's own latest rows, else that of its setup's units with the same method, else that
of its setup. Other work costs its planned seconds, times measured ÷ planned of all that was
measured. Before any measurement GPUs cost the plan's seconds, and costs of cores are unknown.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean

from orchestrator.config import Runtime, Setup
from orchestrator.experiment.units import Unit
from orchestrator.planning.calibrated import Calibration, gpu_here, read_calibrations
from orchestrator.planning.costs import OTHER, PASSING, SetupCosts
from orchestrator.planning.lengths import Lengths, measured_lengths
from orchestrator.planning.numbers import Range
from orchestrator.planning.rates import Gpu
from orchestrator.planning.work import teacher_online_steps, work_of_kind
from orchestrator.records.clock import BLENDED, PLAIN, MeanSeconds, mean_seconds
from orchestrator.records.files import Damaged
from orchestrator.records.log import EVALUATE, REWARD, ROLLOUT
from orchestrator.selection.study import Study

MOST_READ = 6  # directories of a setup: more of them say little more, and a plan is instant
# Parts of a step that are no phase of their own, and keys of factors for a part of a phase.
PHASE_OF = {REWARD: OTHER, PLAIN: ROLLOUT, BLENDED: ROLLOUT, PASSING: OTHER}


def on_the_clock(work: float, chains: Iterable[float], room: float) -> float:
    """How long `work` takes that `room` workers share, in the unit of both.

    Parts of a chain wait for each other, so no number of workers is faster than the longest chain.
    """
    return max([work / room, *chains])


@dataclass(frozen=True)
class UnitSeconds:
    """Mean seconds of a unit's work: of BLENDED and PLAIN steps, and of a response by benchmark.

    A unit may have been evaluated on other benchmarks for another experiment; these are left out.
    It sampled with `engine`, on a machine with `gpus`, as far as their names were noted.
    """

    unit: Unit
    means: Mapping[str, MeanSeconds]
    engine: str
    gpus: Sequence[str] = ()

    def ran_on(self, gpu: Gpu) -> bool:
        """Whether it used a GPU, and one of this kind where its name was noted."""
        return self.unit.placement.gpus > 0 and all(_is_of_kind(name, gpu) for name in self.gpus)

    def by_phase(self, planned: SetupCosts) -> dict[str, tuple[float, float]]:
        """Phase → (measured, planned) seconds of all steps, and of a response to each benchmark."""
        measured: dict[str, float] = defaultdict(float)
        expected: dict[str, float] = defaultdict(float)
        planned = planned.on(self.unit.placement)
        for kind, mean in self.means.items():
            if kind not in (BLENDED, PLAIN):
                measured[EVALUATE] += mean.whole
                expected[EVALUATE] += planned.response(kind).mid
                continue
            phases = _mean_step(planned, self.unit, kind)
            for part, seconds in mean.parts.items():
                phase = PHASE_OF.get(part, part)
                measured[phase] += mean.rows * seconds
                expected[phase] += mean.rows * phases[phase].mid
        both = {}
        for phase, seconds in measured.items():
            both[phase] = seconds, expected[phase]
        return both


def _mean_step(costs: SetupCosts, unit: Unit, kind: str) -> dict[str, Range]:
    """Planned seconds by phase of one of the unit's steps of a kind, over all of them."""
    works = work_of_kind(unit, kind, costs.setup.training.max_response_tokens)
    total = sum(works.values())
    return {phase: seconds / total for phase, seconds in costs.steps(works).items()}


def _unit_seconds(study: Study, unit: Unit, gpus: Sequence[str] = ()) -> UnitSeconds:
    known = mean_seconds(study.reader(unit), teacher_online_steps(unit))
    means = {}
    for kind in (BLENDED, PLAIN, *study.setup_of(unit).evaluation.benchmarks):
        if kind in known:
            means[kind] = known[kind]
    return UnitSeconds(unit, means, study.setup_of(unit).engine.sampler, gpus)


def _is_of_kind(name: str, gpu: Gpu) -> bool:
    """Whether a driver would give a GPU of this kind a name such as `NVIDIA H100 80GB HBM3`.

    A size counts where both names give one.
    """
    model, _, size = gpu.name.partition("-")
    noted = re.search(r"\b\d+GB\b", name)
    same_size = not size or noted is None or noted[0] == size
    return same_size and re.search(rf"\b{re.escape(model)}\b", name) is not None


def measured_factor(pairs: Iterable[tuple[float, float]]) -> Range | None:
    """Measured ÷ planned of (measured, planned) seconds, a pair for each directory.

    None where nothing can be compared.
    """
    ratios, all_measured, all_planned = [], 0.0, 0.0
    for measured, planned in pairs:
        if planned > 0:
            ratios.append(measured / planned)
            all_measured += measured
            all_planned += planned
    return Range(min(ratios), all_measured / all_planned, max(ratios)) if ratios else None


# --- for a plan ---


@dataclass(frozen=True)
class Measured:
    """Measurements in a runs folder that replace assumptions of a plan; empty without any.

    `units` are finished ones. `lengths` of responses are by setup, then as in `SetupCosts`, and
    hold for all engines. `calibrations` are those of all cards.
    """

    units: Sequence[UnitSeconds] = ()
    lengths: Mapping[str, Mapping[str, Lengths]] = field(default_factory=dict)
    calibrations: Sequence[Calibration] = ()

    def costs(self, name: str, setup: Setup, runtime: Runtime, gpu: Gpu) -> SetupCosts:
        """Costs of a setup with the measurements of it on its engine."""
        lengths, engine = self.lengths.get(name, {}), setup.engine.sampler
        planned = SetupCosts(setup, runtime, engine, gpu, lengths)
        pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for each in self.units:
            if (each.unit.setup, each.engine) == (name, engine) and each.ran_on(gpu):
                for phase, pair in each.by_phase(planned).items():
                    pairs[phase].append(pair)
        factors, sources = {}, {}
        for phase, of_units in pairs.items():
            factor = measured_factor(of_units)
            if factor is not None:
                factors[phase] = factor
        by_runs = set(factors)
        for calibration in self.calibrations:
            if not calibration.card.is_a(gpu):
                continue
            for key, rows in calibration.rows_for(setup, engine).items():
                compared = []
                for row in rows:
                    compared.append((row.seconds, row.planned_seconds(planned)))
                factor = measured_factor(compared)
                if factor is not None and PHASE_OF.get(key, key) not in by_runs:
                    factors[key], sources[key] = factor, calibration.source(rows)
        return SetupCosts(setup, runtime, engine, gpu, lengths, factors, sources)


def measure(study: Study) -> Measured:
    """Read the measurements of a study's finished units; write nothing.

    Damaged directories are passed over.
    """
    if not study.runs.is_dir():
        return Measured()
    units, lengths = [], {}
    present = set(os.listdir(study.runs))
    for name in study.experiment.setups:
        finished = []
        for unit in study.units_of(name):
            if unit.id in present and study.reader(unit).trained:
                finished.append(unit)
        # Every second, third … of them, so that early and late units of the grid are among them.
        chosen = finished[:: -(-len(finished) // MOST_READ) or 1]
        for unit in chosen:
            with suppress(Damaged):
                host = study.reader(unit).provenance().get("host", {})
                units.append(_unit_seconds(study, unit, host.get("gpus", [])))
        of_setup = measured_lengths(study, name, chosen)
        if of_setup:
            lengths[name] = of_setup
    return Measured(units, lengths, read_calibrations(study.runs))


# --- for the units at hand ---


class StudySeconds:
    """Seconds of one training step or one response of each unit of a study.

    `plans` are the planned costs by setup, `units` those that were clocked.
    """

    def __init__(self, plans: Mapping[str, SetupCosts], units: Sequence[UnitSeconds]):
        self._plans = plans
        self._recent: dict[tuple[str, str], float] = {}  # (unit id, kind of work) → seconds
        # (setup, or setup and method; kind of work) → the mean of each unit
        self._means: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._known: dict[tuple[str, str], Range | None] = {}
        pairs = []
        for each in units:
            for kind, mean in each.means.items():
                self._recent[each.unit.id, kind] = mean.recent
                for source in _sources(each.unit):
                    self._means[source, kind].append(mean.whole)
                planned = self._planned(each.unit, kind).mid
                pairs.append((mean.rows * mean.whole, mean.rows * planned))
        self._scale = measured_factor(pairs)

    def of(self, unit: Unit, kind: str) -> Range | None:
        """Seconds of one step (BLENDED, PLAIN) or one response (a benchmark's key) of a unit.

        The low and the high estimate are as far from the middle one as the fastest and the slowest
        unit of the nearest source with several of them, else as the plan's. None while unknown.
        """
        key = unit.id, kind
        if key not in self._known:
            self._known[key] = self._estimate(unit, kind)
        return self._known[key]

    def _estimate(self, unit: Unit, kind: str) -> Range | None:
        planned = self._planned(unit, kind)
        sources = [self._means[source, kind] for source in _sources(unit)]
        middle = self._recent.get((unit.id, kind))
        for means in sources:
            if middle is None and means:
                middle = fmean(means)
        if middle is None and self._scale is not None:
            middle = self._scale.mid * planned.mid
        if middle is None:
            return planned if unit.placement.gpus else None
        for means in sources:
            if len(means) > 1:
                mean = fmean(means)
                return Range(middle * min(means) / mean, middle, middle * max(means) / mean)
        return planned * (middle / planned.mid)

    def _planned(self, unit: Unit, kind: str) -> Range:
        """Planned seconds of the same work, without parts of a step that no clock has."""
        costs = self._plans[unit.setup].on(unit.placement)
        if kind not in (BLENDED, PLAIN):
            return costs.response(kind)
        phases = _mean_step(costs, unit, kind)
        return Range.total(seconds for phase, seconds in phases.items() if phase != OTHER)

    @property
    def calibrated(self) -> bool:
        """Whether estimates rest on a calibration of the card, for want of measured runs."""
        return self._scale is None and any(plan.sources for plan in self._plans.values())


def study_seconds(study: Study) -> StudySeconds:
    """Read the clocks of all units, finished or not."""
    setups, runtime = study.experiment.setups, study.experiment.runtime
    calibrated = Measured(calibrations=read_calibrations(study.runs))
    gpu = gpu_here(calibrated.calibrations).part(runtime.placement.gpu_share)
    plans = {}
    for name, setup in setups.items():
        plans[name] = calibrated.costs(name, setup, runtime, gpu)
    return StudySeconds(plans, [_unit_seconds(study, unit) for unit in study.units])


def _sources(unit: Unit) -> tuple[str, str]:
    """The units whose means say something of a unit, nearest first."""
    return f"{unit.setup} {unit.method or unit.kind}", unit.setup
