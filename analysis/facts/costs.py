"""The cost of units: wall-clock by phase, tokens, and positions that the teacher judged.

`family_costs` sums everything that the units of a method took. `training_cost` is the part that one
checkpoint needs: its training steps, and those of the supervised stage before it. `cost_rows` reads
scores at equal cost off each method's trajectory of scores over training cost. All methods of a
setup are compared at one cost, the most that all of them have reached. Between two evaluated
checkpoints the score is interpolated linearly, as a weighted mean of both, so that no step is
chosen by its score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from analysis.facts.assess import Columns, estimates, replicate_scores, to_reference
from analysis.facts.candidates import Candidate, Selected, read_counts
from analysis.facts.evidence import MEASURES, AtCost, CostRow, TrainingCost
from analysis.labels import BASE
from orchestrator.config import Placement
from orchestrator.experiment.methods import REFERENCE
from orchestrator.experiment.units import Unit
from orchestrator.records.clock import kept_steps, phase_seconds
from orchestrator.records.log import EVALUATE, MEASURE, START, STEP_PARTS
from orchestrator.records.rundir import ATTEMPTS, CONFIG, METRICS, TIMING, RunReader
from orchestrator.selection.scores import evaluated_steps
from orchestrator.selection.study import Study

PHASES = (START, *STEP_PARTS, MEASURE, EVALUATE)


@dataclass(frozen=True)
class Cost:
    """Sums over units; None where nothing was logged.

    `seconds` has the time of each phase. It contains steps that ran again after a kill, which
    `repeated` counts; `timed_steps` counts them as often as they ran. Tokens and positions count
    once, as they were kept. Tokens are those of training rollouts and of evaluated responses, and
    positions are those at which the teacher's distribution was computed. `placements` says where
    the roles lived, for example {"inline"} or {"colocated, 1 GPU"}: seconds compare only between
    units with the same placement.
    """

    units: int
    placements: frozenset[str]
    seconds: dict[str, float]
    timed_steps: int
    repeated: int
    training_tokens: int | None
    teacher_positions: int | None
    evaluation_tokens: int | None

    @property
    def total_seconds(self) -> float | None:
        return sum(self.seconds.values()) if self.seconds else None

    @property
    def seconds_per_step(self) -> float | None:
        """Mean wall-clock of a training step, evaluation apart."""
        spent = [self.seconds[phase] for phase in STEP_PARTS if phase in self.seconds]
        return sum(spent) / self.timed_steps if self.timed_steps else None


def training_cost(study: Study, unit: Unit, step: int) -> TrainingCost:
    """The cost of the checkpoint after `step` updates of a trial."""
    parts = [_own_cost(study, unit, step)]
    for needed in study.units:
        if needed.id in unit.depends_on:
            parts.append(training_cost(study, needed, needed.steps))
    return combined(parts, sum)


def _own_cost(study: Study, unit: Unit, step: int) -> TrainingCost:
    """The cost of a unit's own steps before `step`, without the stage before it."""
    run = study.reader(unit)
    placement, clocked = placement_of(unit, run), _seconds_by_step(run)
    seconds = _all_of([clocked.get(str(before)) for before in range(step)])
    steps, unlogged = _tokens(run)[:step], _StepTokens(None, None)
    steps += [unlogged] * (step - len(steps))
    tokens, decoded = (_all_of([each[at] for each in steps]) for at in range(2))
    # The supervised stage learns from answers that the teacher decodes and does not score.
    nothing = None if tokens is None else 0.0
    supervised = unit.is_supervised
    return TrainingCost(
        seconds=seconds,
        device_seconds=None if seconds is None else seconds * (placement.gpus or placement.cpus),
        student_tokens=nothing if supervised else decoded,
        teacher_scored=nothing if supervised else decoded,
        teacher_decoded=tokens if supervised else nothing,
        supervised_updates=float(step if supervised else 0),
        updates=float(step),
    )


def combined(
    costs: Sequence[TrainingCost], how: Callable[[Sequence[float]], float]
) -> TrainingCost:
    """Each number of several costs, for example their sum; None where one of them lacks it."""
    values: dict[str, float | None] = {}
    for field in fields(TrainingCost):
        known = _present([getattr(cost, field.name) for cost in costs])
        values[field.name] = how(known) if len(known) == len(costs) else None
    return TrainingCost(**values)  # pyright: ignore[reportArgumentType] (updates are never None)


def family_costs(study: Study, setup: str) -> dict[str, Cost]:
    """Method → sum over its started units, in the order of the grid.

    Units without a method are summed by their kind: `base_eval` and `sft`.
    """
    costs_of: dict[str, list[Cost]] = {}
    for unit in study.units_of(setup):
        costs = costs_of.setdefault(unit.method or unit.kind, [])
        if study.reader(unit).started:
            costs.append(unit_cost(study, unit))
    return {family: total(costs) for family, costs in costs_of.items()}


def total(costs: Sequence[Cost]) -> Cost:
    """Sums of the numbers that are known."""
    seconds = Counter[str]()
    for cost in costs:
        seconds.update(cost.seconds)
    return Cost(
        units=sum(cost.units for cost in costs),
        placements=frozenset[str]().union(*(cost.placements for cost in costs)),
        seconds=dict(seconds),
        timed_steps=sum(cost.timed_steps for cost in costs),
        repeated=sum(cost.repeated for cost in costs),
        training_tokens=_sum([cost.training_tokens for cost in costs]),
        teacher_positions=_sum([cost.teacher_positions for cost in costs]),
        evaluation_tokens=_sum([cost.evaluation_tokens for cost in costs]),
    )


def unit_cost(study: Study, unit: Unit) -> Cost:
    """The cost of one unit so far; its evaluations include fresh samples."""
    run = study.reader(unit)
    clocked = phase_seconds(run)
    steps = _tokens(run)
    evaluated = []
    for ids in (study.evaluation_ids(unit.setup), study.fresh_evaluation_ids(unit.setup)):
        for evaluation_id in ids.values():
            for step in run.evaluated_steps(evaluation_id):
                evaluated.append(run.evaluation_tokens(evaluation_id, step))
    return Cost(
        units=1,
        placements=frozenset({placement_text(placement_of(unit, run))}),
        seconds=clocked.seconds,
        timed_steps=clocked.steps,
        repeated=clocked.repeated,
        training_tokens=_sum([of_step.responses for of_step in steps]),
        # A supervised stage has no rollouts that the teacher could judge.
        teacher_positions=_sum([of_step.decoded for of_step in steps]) if unit.is_trial else None,
        evaluation_tokens=_sum(evaluated),
    )


# --- where a unit was trained ---


def hardware(study: Study, unit: Unit) -> str:
    """Placement of a unit, and the GPUs or processor of its last attempt."""
    run = study.reader(unit)

    def processors() -> list[str]:
        attempts = run.attempts()
        host = attempts[-1].get("host", {}) if attempts else {}
        return sorted(set(host.get("gpus") or [])) or [host.get("cpu") or ""]

    kinds = run.derived(ATTEMPTS, "GPUs or processor of the last attempt", processors)
    return ", ".join(filter(None, [placement_text(placement_of(unit, run)), *kinds]))


def placement_of(unit: Unit, run: RunReader) -> Placement:
    """The placement with which a unit ran last, else that of the experiment."""

    def read() -> dict[str, Any] | None:
        return run.config().get("unit", {}).get("placement")

    written = run.derived(CONFIG, "placement", read) if run.started else None
    return Placement(**written) if written else unit.placement


def placement_text(placement: Placement) -> str:
    """`inline`, or `colocated, 1 GPU`."""
    gpus = f", {placement.gpus} GPU{'s' if placement.gpus > 1 else ''}" if placement.gpus else ""
    return f"{placement.mode}{gpus}"


# --- the logs of a unit ---


def _seconds_by_step(run: RunReader) -> dict[str, float]:
    """Step → seconds of its parts when it ran last; a key of JSON is a text."""

    def read() -> dict[str, float]:
        seconds = {}
        for step, row in kept_steps(run).items():
            seconds[str(step)] = row.seconds
        return seconds

    return run.derived(TIMING, "seconds by step", read)


class _StepTokens(NamedTuple):
    """Tokens of a step: of its responses, and those that student decoded and teacher judged."""

    responses: int | None
    decoded: int | None


def _tokens(run: RunReader) -> list[_StepTokens]:
    """The tokens of each step."""

    def read() -> list[_StepTokens]:
        steps = []
        for row in run.metrics():
            tokens = row.get("response_tokens")
            # The teacher judges every token of a finished response, or every draft while decoding.
            steps.append(_StepTokens(tokens, row.get("teacher_positions", tokens)))
        return steps

    return [_StepTokens(*of_step) for of_step in run.derived(METRICS, "tokens of steps", read)]


def _present(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _all_of(values: Sequence[float | None]) -> float | None:
    """The sum; None unless all values are known."""
    present = _present(values)
    return float(sum(present)) if len(present) == len(values) else None


def _sum(values: Sequence[int | None]) -> int | None:
    """The sum of the known values; None without any."""
    present = [value for value in values if value is not None]
    return sum(present) if present else None


# --- scores at equal cost ---

# Why no score can be read off.
OTHER_HARDWARE = "other hardware"
NOT_LOGGED = "not logged"
TOO_EARLY = "before its first checkpoint"


@dataclass(frozen=True)
class CurvePoint:
    """A checkpoint of the chosen setting, and what its training took by then."""

    cost: TrainingCost
    checkpoint: Candidate

    def amount(self, measure: str) -> float:
        """The cost by a key of MEASURES; methods that did not log it are `incomparable`."""
        found = MEASURES[measure](self.cost)
        assert found is not None, "methods without it are left out"
        return found


Curves = Mapping[str, Sequence[CurvePoint]]  # by method, none of them empty


@dataclass(frozen=True)
class ReadOff:
    """The score between two checkpoints of a setting, a part `weight` of the way to the second."""

    first: Candidate
    second: Candidate
    weight: Fraction

    @property
    def method(self) -> str:
        return self.first.method

    @property
    def seeds(self) -> int:
        return self.first.seeds

    @property
    def by_seed(self) -> dict[str, list[Fraction]]:
        found: dict[str, list[Fraction]] = {}
        after = self.second.by_seed
        for key, before in self.first.by_seed.items():
            found[key] = []
            for one, other in zip(before, after[key], strict=True):
                found[key].append((1 - self.weight) * one + self.weight * other)
        return found

    @property
    def sampling(self) -> dict[str, float]:
        first, second = float(1 - self.weight), float(self.weight)
        after = self.second.sampling
        return {
            key: first**2 * before + second**2 * after[key]
            for key, before in self.first.sampling.items()
        }


def cost_rows(study: Study, chosen: Sequence[Selected], measure: str = "updates") -> list[CostRow]:
    """A row for each method with a score in each setup; `measure` is a key of MEASURES.

    UserError where two checkpoints of a setup were evaluated on different problems.
    """
    rows: list[CostRow] = []
    for setup in study.experiment.setups:
        trained = [each for each in chosen if each.setup == setup and each.best.method != BASE]
        if trained:
            rows += _cost_rows(study, setup, trained, measure)
    return rows


def curve(study: Study, best: Candidate) -> list[CurvePoint]:
    """The checkpoints of a chosen setting that the metric can score, in the order of their steps."""
    units = [unit for unit in study.units if unit.id in best.units]
    ids = study.evaluation_ids(units[0].setup)
    points = []
    runs = [study.reader(unit) for unit in units]
    for step in evaluated_steps(units[0], runs, ids):
        counts = read_counts(study, best.units, ids, step, best.metric)
        if len(counts) < len(ids):  # fewer than k samples, as where a race dropped it
            continue
        cost = combined([training_cost(study, unit, step) for unit in units], fmean)
        points.append(CurvePoint(cost, replace(best, step=step, counts=counts)))
    return points


def incomparable(study: Study, curves: Curves, measure: str) -> dict[str, str]:
    """Method → why its cost compares with no other: not logged, or on other hardware."""
    places = _places(study, curves)
    reference = places.get(REFERENCE) or next(iter(places.values()), ())
    found = {}
    for method, points in curves.items():
        costs = [MEASURES[measure](point.cost) for point in points]
        if None in costs:
            found[method] = NOT_LOGGED
        elif measure == "time" and (len(reference) > 1 or places[method] != reference):
            found[method] = OTHER_HARDWARE
    return found


def _places(study: Study, curves: Curves) -> dict[str, tuple[str, ...]]:
    """Method → the kinds of hardware that the runs of its chosen setting were trained on."""
    places = {}
    for method, points in curves.items():
        units = [unit for unit in study.units if unit.id in points[0].checkpoint.units]
        places[method] = tuple(dict.fromkeys(hardware(study, unit) for unit in units))
    return places


def _cost_rows(
    study: Study, setup: str, trained: Sequence[Selected], measure: str
) -> list[CostRow]:
    curves = {each.best.method: curve(study, each.best) for each in trained}
    why_not, places = incomparable(study, curves, measure), _places(study, curves)
    comparable = {method: points for method, points in curves.items() if method not in why_not}
    amount = min((points[-1].amount(measure) for points in comparable.values()), default=None)
    read: dict[str, ReadOff] = {}
    for method, points in comparable.items():
        assert amount is not None, "the method itself has reached one"
        found = _read_off(points, amount, measure)
        if found is None:
            why_not[method] = TOO_EARLY
        else:
            read[method] = found
    columns = _compare(read, trained, clocked=measure == "time")
    first = next(unit for unit in study.units if unit.id in trained[0].best.units)
    on_gpus = bool(placement_of(first, study.reader(first)).gpus)
    rows = []
    for each in trained:
        method, step = each.best.method, each.best.step
        row = CostRow(
            setup=setup,
            method=method,
            step=step,
            units=each.best.units,
            hardware=places[method],
            cost=next(point.cost for point in curves[method] if point.checkpoint.step == step),
            columns=columns.get(method, {}),
            why_not=why_not.get(method, ""),
            measure=measure,
            amount=amount,
            on_gpus=on_gpus,
        )
        rows.append(row)
    return rows


def _read_off(points: Sequence[CurvePoint], amount: float, measure: str) -> ReadOff | None:
    """The score at a cost that the last point has reached; None before the first point."""
    for before, after in pairwise(points):
        low, high = before.amount(measure), after.amount(measure)
        if low <= amount <= high:
            weight = Fraction(amount - low) / Fraction(high - low) if high > low else Fraction(1)
            return ReadOff(before.checkpoint, after.checkpoint, weight)
    if points[-1].amount(measure) == amount:
        return ReadOff(points[-1].checkpoint, points[-1].checkpoint, Fraction(1))
    return None


def _compare(
    read: Mapping[str, ReadOff], trained: Sequence[Selected], clocked: bool
) -> dict[str, dict[str, AtCost]]:
    """Method → column → score at equal cost and difference to vanilla, with the table's intervals.

    `clocked` is as in `assess.differences`.
    """
    ends: dict[str, Candidate] = {}
    for method, found in read.items():
        ends |= {f"{method} before": found.first, f"{method} after": found.second}
    drawn_ends = replicate_scores(ends)
    drawn: dict[str, Columns] = {}
    for method, found in read.items():
        before, after = drawn_ends[f"{method} before"], drawn_ends[f"{method} after"]
        weight = float(found.weight)
        drawn[method] = {key: (1 - weight) * before[key] + weight * after[key] for key in before}
    sizes = {each.best.method: each.candidates for each in trained}
    gaps = to_reference(read, drawn, sizes, clocked=clocked)
    columns: dict[str, dict[str, AtCost]] = {}
    for method, found in read.items():
        columns[method] = {}
        for key, score in estimates(found, drawn[method]).items():
            columns[method][key] = AtCost(score, gaps.get(method, {}).get(key))
    return columns
