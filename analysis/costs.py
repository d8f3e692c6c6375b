"""The cost of units: wall-clock by phase, tokens, and positions that the teacher judged.

`family_costs` sums everything that the units of a method took. `training_cost` is the part that one
checkpoint needs: its training steps, and those of the supervised stage before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from orchestrator.config import Placement
from orchestrator.experiment.units import Unit
from orchestrator.records.clock import kept_steps, phase_seconds
from orchestrator.records.log import EVALUATE, START, STEP_PARTS
from orchestrator.records.rundir import ATTEMPTS, CONFIG, METRICS, TIMING, RunReader
from orchestrator.selection.study import Study

PHASES = (START, *STEP_PARTS, EVALUATE)


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


@dataclass(frozen=True)
class TrainingCost:
    """The cost of training up to a checkpoint with its supervised stage; None if it is not logged.

    A supervised stage that several trials share counts for each of them, and a step that ran again
    after a kill counts once. `seconds` are those of the training steps, without start, evaluation
    and saving. `device_seconds` are `seconds` times the number of GPUs, or of cores without a GPU.
    `student_tokens` were decoded by the student: its responses, or its drafts where a teacher
    judges them. `teacher_scored` counts positions at which the teacher's distribution was computed,
    `teacher_decoded` the tokens of its own answers. `updates` contain the `supervised_updates`. All
    are floats, since they are averaged over seeds.
    """

    seconds: float | None
    device_seconds: float | None
    student_tokens: float | None
    teacher_scored: float | None
    teacher_decoded: float | None
    supervised_updates: float
    updates: float


# The ways to count the cost of training. Time is that of GPUs or cores, so it compares methods only
# if they ran on the same hardware.
MEASURES: Mapping[str, Callable[[TrainingCost], float | None]] = {
    "updates": lambda cost: cost.updates,
    "time": lambda cost: cost.device_seconds,
}


def amount_text(measure: str, amount: float, on_gpus: bool) -> str:
    """A cost with its unit: `60 updates`, `0.127 core-minutes`."""
    if measure == "time":
        return f"{hours_or_minutes(amount, on_gpus)} {'GPU-hours' if on_gpus else 'core-minutes'}"
    return f"{amount:,.0f} {measure}"


def hours_or_minutes(device_seconds: float, on_gpus: bool) -> str:
    """GPU-hours, or core-minutes, with up to three significant digits."""
    value = device_seconds / (3600 if on_gpus else 60)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


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
    tokens = decoded = judged = None
    steps = _tokens(run)
    if len(steps) >= step:
        tokens = _all_of([of_step.responses for of_step in steps[:step]])
        decoded = _all_of([of_step.student for of_step in steps[:step]])
        judged = _all_of([of_step.teacher for of_step in steps[:step]])
    # The supervised stage learns from answers that the teacher decodes and does not score.
    nothing = None if tokens is None else 0.0
    supervised = unit.is_supervised
    return TrainingCost(
        seconds=seconds,
        device_seconds=None if seconds is None else seconds * (placement.gpus or placement.cpus),
        student_tokens=nothing if supervised else decoded,
        teacher_scored=nothing if supervised else judged,
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


def total(costs: Iterable[Cost]) -> Cost:
    """Sums of the numbers that are known."""
    units = timed_steps = repeated = 0
    placements = frozenset[str]()
    seconds: Counter[str] = Counter()
    tokens: list[int | None] = []
    positions: list[int | None] = []
    evaluated: list[int | None] = []
    for cost in costs:
        units += cost.units
        placements |= cost.placements
        seconds.update(cost.seconds)
        timed_steps += cost.timed_steps
        repeated += cost.repeated
        tokens.append(cost.training_tokens)
        positions.append(cost.teacher_positions)
        evaluated.append(cost.evaluation_tokens)
    return Cost(
        units=units,
        placements=placements,
        seconds=dict(seconds),
        timed_steps=timed_steps,
        repeated=repeated,
        training_tokens=_sum(tokens),
        teacher_positions=_sum(positions),
        evaluation_tokens=_sum(evaluated),
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
        teacher_positions=_sum([of_step.teacher for of_step in steps]) if unit.is_trial else None,
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
    """Tokens of a step: of its responses, decoded by the student, and judged by the teacher."""

    responses: int | None
    student: int | None
    teacher: int | None


def _tokens(run: RunReader) -> list[_StepTokens]:
    """The tokens of each step."""

    def read() -> list[_StepTokens]:
        steps = []
        for row in run.metrics():
            tokens = row.get("response_tokens")
            # The teacher judges every token of a finished response, unless it judged the drafts
            # while decoding, or nothing: then the step logged no entropy of it.
            decoded = row.get("teacher_positions", tokens)
            unscored = tokens is not None and "teacher_entropy" not in row
            steps.append(_StepTokens(tokens, decoded, 0 if unscored else decoded))
        return steps

    return [_StepTokens(*of_step) for of_step in run.derived(METRICS, "tokens by step", read)]


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
