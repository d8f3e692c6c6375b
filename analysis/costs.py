"""The cost of units: wall-clock by phase, tokens, and positions that the teacher judged. From run directories alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.config import Placement
from orchestrator.experiment.units import Unit
from orchestrator.records.columns import EVALUATE, START, STEP_PARTS, TRAIN
from orchestrator.records.rundir import CONFIG, METRICS, TIMING, RunReader
from orchestrator.selection.study import Study

PHASES = (START, *STEP_PARTS, EVALUATE)


@dataclass(frozen=True)
class Cost:
    """Sums over units; None where nothing was logged.

    `seconds` of a phase count all the time it took, also that of the `repeated` steps which ran again after a kill;
    `timed_steps` counts those too. Tokens and positions are of what was kept: the tokens of training rollouts and of
    the evaluations' responses, and the positions at which the teacher's distribution was computed. `placements` says
    where the roles lived, for example {"inline"} or {"colocated, 1 GPU"}: only what ran alike takes comparable time.
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


def family_costs(study: Study, setup: str) -> dict[str, Cost]:
    """Method, or kind of the units that have none, → sum over its units that were started, in the grid's order."""
    costs_of: dict[str, list[Cost]] = {}
    for unit in study.units_of(setup):
        costs = costs_of.setdefault(unit.method or unit.kind, [])
        if study.reader(unit).started:
            costs.append(unit_cost(study, unit))
    return {family: total(costs) for family, costs in costs_of.items()}


def total(costs: Iterable[Cost]) -> Cost:
    """Sums of the numbers that are there."""
    rows = list(costs)
    seconds: Counter[str] = Counter()
    for row in rows:
        seconds.update(row.seconds)
    return Cost(
        units=sum(row.units for row in rows),
        placements=frozenset().union(*(row.placements for row in rows)),
        seconds=dict(seconds),
        timed_steps=sum(row.timed_steps for row in rows),
        repeated=sum(row.repeated for row in rows),
        training_tokens=_sum(row.training_tokens for row in rows),
        teacher_positions=_sum(row.teacher_positions for row in rows),
        evaluation_tokens=_sum(row.evaluation_tokens for row in rows),
    )


def unit_cost(study: Study, unit: Unit) -> Cost:
    """The cost of one unit so far."""
    run = study.reader(unit)
    seconds, timed, repeated = run.derived(TIMING, "seconds by phase", lambda: _clocked(run))
    tokens, judged = run.derived(METRICS, "tokens", lambda: _training_tokens(run))
    return Cost(
        units=1,
        placements=frozenset({_placement(unit, run)}),
        seconds=seconds,
        timed_steps=timed,
        repeated=repeated,
        training_tokens=tokens,
        teacher_positions=judged if unit.is_trial else None,
        evaluation_tokens=_evaluation_tokens(study, unit),
    )


def _clocked(run: RunReader) -> tuple[dict[str, float], int, int]:
    """Seconds by phase, how many training steps were timed, and how many of them were repeated ones."""
    seconds: Counter[str] = Counter()
    steps: list[int] = []
    for row in run.timing():
        if row["phase"] in (START, EVALUATE):
            seconds.update({row["phase"]: row["seconds"]})
        else:
            seconds.update({part: row[part] for part in STEP_PARTS if part in row})
        if row["phase"] == TRAIN:
            steps.append(row["step"])
    return dict(seconds), len(steps), len(steps) - len(set(steps))


def _training_tokens(run: RunReader) -> tuple[int | None, int | None]:
    """Tokens of all training responses, and positions that the teacher judged."""
    metrics = run.metrics()
    # The teacher judges every token of a finished rollout, unless it judged the drafts while decoding.
    judged = (row.get("teacher_positions", row.get("response_tokens")) for row in metrics)
    return _sum(row.get("response_tokens") for row in metrics), _sum(judged)


def _placement(unit: Unit, run: RunReader) -> str:
    """Where the roles of a unit lived when it ran last; what the experiment says where nothing is written."""
    written = None
    if run.started:
        written = run.derived(CONFIG, "placement", lambda: run.config().get("unit", {}).get("placement"))
    placement = Placement(**written) if written else unit.placement
    gpus = f", {placement.gpus} GPU{'s' if placement.gpus > 1 else ''}" if placement.gpus else ""
    return f"{placement.mode}{gpus}"


def _evaluation_tokens(study: Study, unit: Unit) -> int | None:
    """Of all checkpoints, with the fresh samples of the selected one."""
    run, tokens = study.reader(unit), []
    for ids in (study.evaluation_ids(unit.setup), study.fresh_evaluation_ids(unit.setup)):
        for evaluation_id in ids.values():
            for step in run.evaluated_steps(evaluation_id):
                tokens.append(run.evaluation_tokens(evaluation_id, step))
    return _sum(tokens)


def _sum(values: Iterable[int | None]) -> int | None:
    present = [value for value in values if value is not None]
    return sum(present) if present else None
