"""Where one unit stands, from its run directory and what is wanted of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.experiment import evaluation_protocol
from orchestrator.experiment.evaluation_protocol import Sampling
from orchestrator.experiment.kinds import Kind, OfKind
from orchestrator.experiment.units import Unit
from orchestrator.monitor.time_left import Left, left_of, work_left
from orchestrator.monitor.timings import Costs
from orchestrator.records.claims import Held
from orchestrator.records.columns import EVALUATING, RESCORING, TRAINING
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import missing
from orchestrator.selection import scores as selection
from orchestrator.selection.samples_wanted import Wants
from orchestrator.selection.study import Study

LONGEST = 22  # letters of what a unit does
STATES = ("done", "running", "failed", "damaged", "interrupted", "queued", "waiting")


@dataclass(frozen=True)
class UnitStatus(OfKind):
    """`state` is one of STATES; `score` is the best mean pass@1 so far, in [0, 1], at `best_step`.

    `phase` is `training`, `evaluating` or `rescoring`: what the unit does, or what it waits for.
    `doing` says the same to people in at most `LONGEST` letters, for example `evaluating 640 left`,
    which are responses. `seconds_left` is that of a running unit, `seconds_needed` that of every
    unit that is not done, both None while unknown.
    """

    id: str
    setup: str
    label: str
    kind: Kind
    seed: int
    state: str
    step: int
    steps: int
    loss: float | None
    score: float | None
    best_step: int | None
    seconds_left: float | None
    error: str | None
    latest_step: int | None = None  # of the checkpoint evaluated last
    latest_score: float | None = None
    phase: str | None = None
    doing: str = ""
    attempt: int | None = None
    attempts: int | None = None
    seconds_needed: float | None = None
    method: str | None = None
    confirms: int | None = None  # the step that a confirming run confirms
    cpus: float = 0.0
    gpus: float = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def unread_status(unit: Unit, damage: str | None) -> UnitStatus:
    """Of a unit that is damaged, or waits for one that is."""
    return UnitStatus(
        id=unit.id,
        setup=unit.setup,
        label=unit.label,
        kind=unit.kind,
        seed=unit.seed,
        state="damaged" if damage else "waiting",
        step=0,
        steps=unit.steps,
        loss=None,
        score=None,
        best_step=None,
        seconds_left=None,
        error=damage,
        method=unit.method,
    )


@dataclass(frozen=True)
class UnitView:
    """The basis of every unit's status: the samples wanted now, and those that will be wanted
    `later`.
    """

    study: Study
    wanted: Wants
    later: Mapping[str, str]
    costs: Costs
    claimed: Mapping[str, list[Held]]  # unit id → slices that evaluators sample now
    left: dict[str, Left | None] = field(
        default_factory=dict
    )  # unit id → what it still takes, filled by `unit_status`

    def unit_status(self, unit: Unit) -> UnitStatus:
        run = self.study.reader(unit)
        steps_logged, last = run.last_metrics()
        confirms = unit.id in self.study.confirming
        ids = list(
            self.study.evaluation_ids(
                unit.setup, evaluation_protocol.FRESH if confirms else 0
            ).values()
        )
        scores = selection.trajectory(run, ids) if unit.has_scores else {}
        best = selection.best_step(run, ids) if scores else None
        latest = max(scores, default=None)
        state = self._state(unit, run)
        running = state == "running"
        step = steps_logged if running else run.next_step
        lacking = {} if state == "done" else self._missing(unit, run)
        left = self.left[unit.id] = (
            None if state == "done" else self._left(unit, run, step, lacking)
        )
        needed = left and (left.training + left.sampling).mid
        note = run.phase() if running else None
        return UnitStatus(
            id=unit.id,
            setup=unit.setup,
            label=unit.label,
            kind=unit.kind,
            seed=unit.seed,
            state=state,
            step=step,
            steps=unit.steps,
            loss=last.get("loss") if last else None,
            score=float(scores[best]) if best is not None else None,
            best_step=best,
            latest_step=latest,
            latest_score=float(scores[latest]) if latest is not None else None,
            seconds_left=needed if running else None,
            error=run.error or self._evaluation_error(unit, run),
            phase=self._phase(unit, run, state),
            doing=self._doing(unit, run, state, sum(lacking.values())),
            attempt=note.attempt if note else None,
            attempts=note.attempts if note else None,
            seconds_needed=needed,
            method=unit.method,
            confirms=self.study.confirming.get(unit.id),
            cpus=unit.placement.cpus,
            gpus=unit.placement.gpus,
        )

    def _state(self, unit: Unit, run: RunReader) -> str:
        if run.running or unit.id in self.claimed:
            return "running"
        asked = self.wanted.get(unit.id, {})
        later = unit.id in self.later
        if run.trained and not asked and not later:
            return "done"
        if run.error is not None or self._evaluation_error(unit, run) is not None:
            return "failed"
        if run.trained:
            return "waiting" if self._is_rescored(unit) else "queued"
        if run.started and run.next_step < unit.steps:
            return "interrupted"
        return (
            "queued"
            if all(self.study.reader(needed).trained for needed in unit.depends_on)
            else "waiting"
        )

    def _phase(self, unit: Unit, run: RunReader, state: str) -> str | None:
        """Name the phase of a running unit, or the reason why another waits."""
        if state == "running" and unit.id in self.claimed and not run.running:
            fresh = set(self.study.fresh_evaluation_ids(unit.setup).values())
            is_fresh = self.claimed[unit.id][0].evaluation_id in fresh
            return RESCORING if is_fresh and unit.id not in self.study.confirming else EVALUATING
        if state == "running":
            note = run.phase()
            return note.name or None if note else None
        if state not in ("queued", "waiting"):
            return None
        if not run.trained:
            return TRAINING if unit.trains else EVALUATING
        if self.wanted.get(unit.id):
            return RESCORING if self._is_rescored(unit) else EVALUATING
        return self.later.get(unit.id)

    def _doing(self, unit: Unit, run: RunReader, state: str, lacking: int) -> str:
        """`lacking`: responses that are wanted of it now."""
        phase = self._phase(unit, run, state)
        if state == "running":
            if phase in (EVALUATING, RESCORING):
                return (
                    f"{phase} {lacking if lacking < 100_000 else f'{lacking // 1000}k'} left"
                    if lacking
                    else phase
                )
            note = run.phase()
            words = phase or "starting"
            return f"{words}, try {note.attempt}" if note and note.attempt > 1 else words
        if state == "waiting" and not run.trained:
            return "waiting for its stage"
        if state == "waiting":
            return "waiting for rescoring" if phase == RESCORING else "waiting for its race"
        stepped = run.trained or (run.started and run.next_step == unit.steps)
        return "queued for evaluation" if state == "queued" and stepped else state

    def _is_rescored(self, unit: Unit) -> bool:
        """Whether all samples that a unit wants are fresh ones of the checkpoint selected in its
        family.
        """
        if unit.id in self.study.confirming:
            return False
        return all(
            sampling.draw == evaluation_protocol.FRESH for sampling in self.wanted.get(unit.id, {})
        )

    def _left(
        self, unit: Unit, run: RunReader, step: int, lacking: dict[Sampling, int]
    ) -> Left | None:
        confirms = unit.id in self.study.confirming
        return left_of(
            unit, work_left(self.study.experiment, unit, run, step, lacking, confirms), self.costs
        )

    def _missing(self, unit: Unit, run: RunReader) -> dict[Sampling, int]:
        """Responses that the checkpoints of a unit lack now."""
        evaluation, lacking = self.study.setup_of(unit).evaluation, {}
        for sampling, samples in self.wanted.get(unit.id, {}).items():
            evaluation_id = self.study.evaluation_ids(unit.setup, sampling.draw)[sampling.benchmark]
            problems = evaluation_protocol.problems_wanted(evaluation, sampling.benchmark)
            parts = missing(
                run.slices(evaluation_id, sampling.step), problems, samples, [], problems * samples
            )
            lacking[sampling] = sum(part.responses for part in parts)
        return lacking

    def _evaluation_error(self, unit: Unit, run: RunReader) -> str | None:
        """Why samples that are wanted of a unit could not be taken."""
        for sampling in self.wanted.get(unit.id, {}):
            evaluation_id = self.study.evaluation_ids(unit.setup, sampling.draw)[sampling.benchmark]
            error = run.evaluation_error(evaluation_id, sampling.step)
            if error is not None:
                return error
        return None
