"""Measurements of an experiment's finished runs: lengths of responses, seconds of steps and
responses.

They replace the plan's assumptions for the rest of the sweep. Lengths are taken over as they are,
whatever the engine. Seconds become a factor for each setup and phase, measured ÷ planned: of all
directories together in the middle estimate, and of the fastest and the slowest directory in the low
and the high one. Phases that no directory measured have the factors of `planning.calibrated`, where
a card of the kind was.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean

from orchestrator.config import Runtime, Setup
from orchestrator.experiment.units import Unit
from orchestrator.planning.calibrated import Calibration, read_calibrations
from orchestrator.planning.costs import (
    BLENDED,
    OTHER,
    PASSING,
    PLAIN,
    SUPERVISED,
    TRAINING_LENGTHS,
    SetupCosts,
)
from orchestrator.planning.lengths import PROMPT_TOKENS, Lengths
from orchestrator.planning.ranges import Range
from orchestrator.planning.rates import Gpu
from orchestrator.planning.steps import teacher_online_steps
from orchestrator.records.columns import EVALUATE, LEARN, REWARD, ROLLOUT, SCORE, STEP_PARTS, TRAIN
from orchestrator.records.files import Damaged
from orchestrator.records.rundir import RunReader
from orchestrator.selection.study import Study

MOST_READ = (
    6  # directories of a setup; those in between say little more, and a plan shall take no time
)
PHASE_OF_KEY = {
    PLAIN: ROLLOUT,
    BLENDED: ROLLOUT,
    PASSING: OTHER,
}  # of a factor that is for a part of a phase
PHASE_OF_PART = {ROLLOUT: ROLLOUT, SCORE: SCORE, LEARN: LEARN, REWARD: OTHER}


@dataclass(frozen=True)
class Clocked:
    """Seconds by row of a unit's `timing.jsonl`.

    `steps` are those of the parts of each training step, by kind of step (BLENDED or PLAIN).
    `responses` are those of one response, by benchmark.
    """

    steps: Mapping[str, list[dict[str, float]]]
    responses: Mapping[str, list[float]]


@dataclass(frozen=True)
class UnitSeconds:
    """Mean seconds of a finished unit: (steps, their parts) by kind of step, and of a response by
    benchmark.

    Benchmarks are those of the experiment at hand: a unit may have been evaluated on others for
    another one.
    """

    unit: Unit
    engine: str
    gpus: tuple[str, ...]  # names of its machine's, as far as they were noted
    steps: Mapping[str, tuple[int, Mapping[str, float]]]
    responses: Mapping[str, float]

    def ran_on(self, gpu: Gpu) -> bool:
        """Whether it used a GPU, and one of this kind where its name was noted: `NVIDIA H100 80GB
        HBM3`.
        """
        return self.unit.placement.gpus > 0 and all(_is_of_kind(name, gpu) for name in self.gpus)


def _is_of_kind(name: str, gpu: Gpu) -> bool:
    """Whether a driver would call a GPU of this kind so; a size counts where both names give one."""
    model, _, size = gpu.name.partition("-")
    noted = re.search(r"\b\d+GB\b", name)
    return bool(re.search(rf"\b{re.escape(model)}\b", name)) and (
        not size or noted is None or noted[0] == size
    )


@dataclass(frozen=True)
class Measured:
    """Measurements of finished runs, empty without any. `lengths` are by setup, then as in
    `SetupCosts`.

    `calibrations` are those of the runs folder, of whatever cards.
    """

    units: Sequence[UnitSeconds] = ()
    lengths: Mapping[str, Mapping[str, Lengths]] = field(default_factory=dict)
    calibrations: Sequence[Calibration] = ()

    def of_setup(self, name: str) -> list[UnitSeconds]:
        """The finished units of one setup that were clocked."""
        return [each for each in self.units if each.unit.setup == name]

    def costs(self, name: str, setup: Setup, runtime: Runtime, engine: str, gpu: Gpu) -> SetupCosts:
        """Costs of a setup on an engine: with what was measured of it, else as planned."""
        lengths = self.lengths.get(name, {})
        planned = SetupCosts(setup, runtime, engine, gpu, lengths)
        clocked = [
            each for each in self.of_setup(name) if each.engine == engine and each.ran_on(gpu)
        ]
        pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for each in clocked:
            for phase, pair in _measured_and_planned(each, planned).items():
                pairs[phase].append(pair)
        factors = {}
        for phase, of_units in pairs.items():
            factor = measured_factor(of_units)
            if factor is not None:
                factors[phase] = factor
        by_runs, sources = set(factors), {}
        for calibration in self.calibrations:
            if not calibration.card.is_a(gpu):
                continue
            for key, rows in calibration.rows_for(setup, engine).items():
                if PHASE_OF_KEY.get(key, key) in by_runs:
                    continue
                factor = measured_factor(
                    (row.seconds, row.planned_seconds(planned)) for row in rows
                )
                if factor is not None:
                    factors[key], sources[key] = factor, calibration.source(rows)
        return SetupCosts(setup, runtime, engine, gpu, lengths, factors, sources)


def measured_factor(pairs: Iterable[tuple[float, float]]) -> Range | None:
    """Measured ÷ planned of (measured, planned) seconds, a pair for each directory; None without
    any to compare.
    """
    comparable = [(measured, planned) for measured, planned in pairs if planned > 0]
    if not comparable:
        return None
    ratios = [measured / planned for measured, planned in comparable]
    together = sum(measured for measured, _ in comparable) / sum(
        planned for _, planned in comparable
    )
    return Range(min(ratios), together, max(ratios))


def measure(study: Study) -> Measured:
    """Read the measurements of a study's finished units; pass over damaged directories and write
    nothing.
    """
    if not study.runs.is_dir():
        return Measured()
    units, lengths, present = [], {}, set(os.listdir(study.runs))
    for name in study.experiment.setups:
        there = [unit for unit in study.units_of(name) if unit.id in present]
        finished = [unit for unit in there if study.reader(unit).trained]
        # Every second, third … of them, so that early and late units of the grid are among those
        # that are read.
        read = finished[:: -(-len(finished) // MOST_READ) or 1]
        for unit in read:
            with suppress(Damaged):
                units.append(_unit_seconds(study, unit))
        of_setup = _lengths(study, name, read)
        if of_setup:
            lengths[name] = of_setup
    return Measured(units, lengths, read_calibrations(study.runs))


def clocked(run: RunReader, blended: int) -> Clocked:
    """The rows of a unit whose first `blended` steps decode with the teacher.

    The first row of each kind holds start-up and is left out as soon as there are others.
    """
    steps: dict[str, list[dict[str, float]]] = defaultdict(list)
    responses: dict[str, list[float]] = defaultdict(list)
    for row in run.timing():
        if row.get("phase") == TRAIN:
            parts = {part: row[part] for part in STEP_PARTS if part in row}
            steps[BLENDED if row["step"] < blended else PLAIN].append(parts)
        elif row.get("phase") == EVALUATE and row.get("responses"):
            responses[row["benchmark"]].append(row["seconds"] / row["responses"])
    return Clocked(
        {kind: rows[1:] or rows for kind, rows in steps.items()},
        {benchmark: rows[1:] or rows for benchmark, rows in responses.items()},
    )


# --- seconds ---


def _unit_seconds(study: Study, unit: Unit) -> UnitSeconds:
    run = study.reader(unit)
    rows = clocked(run, teacher_online_steps(unit))
    steps = {}
    for kind, parts in rows.steps.items():
        means = {}
        for part in set().union(*parts):
            means[part] = fmean(row.get(part, 0.0) for row in parts)
        steps[SUPERVISED if unit.is_supervised else kind] = (len(parts), means)
    ours = study.setup_of(unit).evaluation.benchmarks
    responses = {
        benchmark: fmean(seconds)
        for benchmark, seconds in rows.responses.items()
        if benchmark in ours
    }
    gpus = run.provenance().get("host", {}).get("gpus", [])
    return UnitSeconds(unit, study.setup_of(unit).engine.sampler, tuple(gpus), steps, responses)


def _measured_and_planned(
    found: UnitSeconds, planned: SetupCosts
) -> dict[str, tuple[float, float]]:
    """Measured and planned seconds of a unit's steps by phase, and of one response to each
    benchmark together.
    """
    pairs: dict[str, tuple[float, float]] = {}
    planned = planned.on(found.unit.placement)
    for kind, (steps, means) in found.steps.items():
        for part, seconds in means.items():
            phase = PHASE_OF_PART[part]
            measured, expected = pairs.get(phase, (0.0, 0.0))
            pairs[phase] = (
                measured + steps * seconds,
                expected + steps * planned.step(kind)[phase].mid,
            )
    if found.responses:
        expected = sum(planned.response(benchmark).mid for benchmark in found.responses)
        pairs[EVALUATE] = sum(found.responses.values()), expected
    return pairs


# --- lengths ---


def _lengths(study: Study, name: str, units: Sequence[Unit]) -> dict[str, Lengths]:
    """Lengths of training responses and of those to each benchmark, as far as `units` of a setup
    say it.
    """
    setup = study.experiment.setups[name]
    prompt = min(PROMPT_TOKENS, setup.training.max_prompt_tokens)
    training, limit = _StepCounts(), setup.training.max_response_tokens
    for unit in units:
        with suppress(Damaged):
            for row in study.reader(unit).committed_metrics():
                if row.get("response_length") is not None and row.get("truncated") is not None:
                    training.add(1.0, row["truncated"], row["response_length"])
    lengths = {TRAINING_LENGTHS: training.lengths(limit, prompt)}
    for benchmark, evaluation_id in study.evaluation_ids(name).items():
        counts, limit = _StepCounts(), setup.evaluation.max_response_tokens
        for record in _evaluations(study, units, evaluation_id):
            counts.add(*record)
        lengths[benchmark] = counts.lengths(limit, prompt)
    return {key: found for key, found in lengths.items() if found is not None}


def _evaluations(
    study: Study, units: Sequence[Unit], evaluation_id: str
) -> Iterator[tuple[int, int, int]]:
    """(responses, truncated, tokens) of each problem at the middle checkpoint that was evaluated of
    each unit.
    """
    for unit in units:
        with suppress(Damaged):
            run = study.reader(unit)
            steps = run.evaluated_steps(evaluation_id)
            records = run.evaluation(evaluation_id, steps[len(steps) // 2]) if steps else None
            for record in records or ():
                yield record.n, record.truncated, record.tokens


@dataclass
class _StepCounts:
    """Sums over responses."""

    responses: float = 0.0
    truncated: float = 0.0
    tokens: float = 0.0

    def add(self, responses: float, truncated: float, tokens: float) -> None:
        self.responses += responses
        self.truncated += truncated
        self.tokens += tokens

    def lengths(self, limit: int, prompt: float) -> Lengths | None:
        """The two-part law of these sums; None without responses."""
        if not self.responses:
            return None
        finished = self.responses - self.truncated
        # Truncated responses have `limit` tokens each; the mean is that of the others.
        mean = (self.tokens - self.truncated * limit) / finished if finished > 0 else float(limit)
        return Lengths(
            min(max(mean, 1.0), float(limit)), self.truncated / self.responses, limit, prompt
        )
