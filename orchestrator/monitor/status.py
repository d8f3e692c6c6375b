"""Where every unit of an experiment stands, from the run directories alone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orchestrator.experiment import evaluation_protocol
from orchestrator.experiment.evaluation_protocol import Sampling
from orchestrator.experiment.kinds import Kind, OfKind
from orchestrator.experiment.methods import BASE, method_label
from orchestrator.experiment.units import Family, Unit
from orchestrator.monitor.time_left import (
    Job,
    Left,
    device_hours,
    left_of,
    left_once_trained,
    sweep_seconds,
    work_left,
)
from orchestrator.monitor.timeline import Device, device_of, hours_spent
from orchestrator.monitor.timings import Costs, measure
from orchestrator.planning.ranges import Range
from orchestrator.records.claims import Claims, Held
from orchestrator.records.columns import EVALUATING, RESCORING, TRAINING
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import missing
from orchestrator.selection import scores as selection
from orchestrator.selection.damage import damaged_units
from orchestrator.selection.samples_wanted import Wants, family_state, wants
from orchestrator.selection.study import Study

STATES = ("done", "running", "failed", "damaged", "interrupted", "queued", "waiting")


@dataclass(frozen=True)
class UnitStatus(OfKind):
    """`state` is one of STATES; `score` is the best mean pass@1 so far, in [0, 1], at `best_step`.

    `phase` is `training`, `evaluating` or `rescoring`: what the unit does, or what it waits for. `doing` says the same
    to people, for example `evaluating arithmetic_long 120/200`. `seconds_left` is that of a running unit,
    `seconds_needed` that of every unit that is not done, both None while unknown.
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
    cpus: float = 0.0
    gpus: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Session:
    """What only the process knows that runs the sweep: since when (monotonic), how much was done, and its cluster."""

    started: float
    trials_before: int
    cluster: Mapping[str, float]  # CPU, GPU → how many there are


@dataclass(frozen=True)
class FamilyStatus:
    """The trials of one method in one setup, or the untrained student: how many stand where, and what is best so far.

    `score` is the mean over seeds and benchmarks in [0, 1] of the checkpoint after `step` in `setting`, all None before
    there is one that all seeds of a setting have.
    """

    setup: str
    label: str
    states: Mapping[str, int]
    score: float | None
    setting: str | None
    step: int | None


@dataclass(frozen=True)
class Overview:
    """All units, and the sweep as a whole. `used` and `cluster` count CPUs and GPUs.

    `seconds_left` and their `seconds_left_range` say how long the sweep still takes on what works on it now; None while
    unknown, or while nothing runs. Device-hours are hours of the `device`, which is `GPU`, or `core` where no unit
    uses a GPU: those that were spent so far, and an estimate of those that are left, None while unknown.
    """

    units: list[UnitStatus]
    families: list[FamilyStatus]
    seconds_left: float | None
    elapsed: float | None = None
    trials_an_hour: float | None = None
    used: Mapping[str, float] = field(default_factory=dict)
    cluster: Mapping[str, float] = field(default_factory=dict)
    seconds_left_range: Range | None = None
    device: Device = "core"
    device_hours_spent: float = 0.0
    device_hours_left: Range | None = None

    def to_json(self) -> dict[str, Any]:
        """The sweep without its units."""
        return {name: value for name, value in asdict(self).items() if name not in ("units", "families")}


@dataclass(frozen=True)
class _Family:
    """What a family wants now, and which checkpoint of it is best so far.

    Once it is trained it will want `later` samples (EVALUATING or RESCORING) of some of the units in `candidates`.
    """

    settings: Family
    wants: Wants
    best: selection.ScoredCheckpoint | None
    later: str | None = None
    candidates: frozenset[str] = frozenset()


def collect(study: Study) -> list[UnitStatus]:
    """Status of each unit, in the order of `units`."""
    return overview(study).units


def overview(study: Study, session: Session | None = None) -> Overview:
    """Status of each unit, in the order of `units`, and of the sweep; safe while it runs.

    A unit with damaged files is `damaged`, and no best is told of its family: it cannot be known.
    """
    study = study.snapshot()
    damaged = damaged_units(study)
    if not damaged:
        return _overview(study, session)
    sound = [unit for unit in study.units if not damaged.keys() & {unit.id, *unit.depends_on}]
    made = _overview(study.with_units(sound), session)
    known = {s.id: s for s in made.units}
    statuses = [known.get(unit.id) or _unread_status(unit, damaged.get(unit.id)) for unit in study.units]
    unread = {(unit.setup, method_label(unit.method or BASE)) for unit in study.units if unit.id not in known}
    families = []
    for family in made.families:
        is_known = (family.setup, family.label) not in unread
        families.append(family if is_known else replace(family, score=None, setting=None, step=None))
    unknown = {"seconds_left": None, "seconds_left_range": None, "device_hours_left": None}
    return replace(made, units=statuses, families=families, **unknown)


def _unread_status(unit: Unit, damage: str | None) -> UnitStatus:
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


def _overview(study: Study, session: Session | None) -> Overview:
    standings = [_family(study, family) for family in study.families()]
    wanted: Wants = {}
    later: dict[str, str] = {}
    for family in standings:
        wanted |= family.wants
        if family.later:
            later |= dict.fromkeys(family.candidates, family.later)
    costs = measure(study)
    claims = Claims(study.runs)
    claimed = {unit.id: held for unit in study.units if (held := claims.held(unit.id))}
    view = _View(study, wanted, later, costs, claimed)
    statuses = [view.unit_status(unit) for unit in study.units]
    states = {s.id: s.state for s in statuses}
    families = [_family_status(family, states) for family in standings]
    running = [s for s in statuses if s.state == "running"]
    # A unit whose checkpoints are being sampled is running too, but on what its evaluators hold: one evaluator works at
    # many units in turn, so evaluators are counted by their processes.
    training = [s for s in running if s.phase not in (EVALUATING, RESCORING)]
    evaluators = len({each.holder for held in claimed.values() for each in held})
    placement = study.experiment.runtime.placement
    used = {
        "CPU": sum([s.cpus for s in training] + [placement.cpus] * evaluators),
        "GPU": float(sum(s.gpus for s in training) + evaluators * placement.gpus),
    }
    jobs, device = _jobs(study, view.left, states, standings, costs), device_of(study)
    left = sweep_seconds(jobs, session.cluster if session else used) if running else None
    made = Overview(
        statuses,
        families,
        left and left.mid,
        used=used,
        seconds_left_range=left,
        device=device,
        device_hours_spent=hours_spent(study),
        device_hours_left=device_hours(jobs, device),
    )
    if session is None:
        return made
    elapsed = time.monotonic() - session.started
    finished = sum(s.is_trial and s.state == "done" for s in statuses) - session.trials_before
    rate = 3600 * finished / elapsed if finished > 0 and elapsed else None
    return replace(made, elapsed=elapsed, trials_an_hour=rate, cluster=session.cluster)


def missing_units(study: Study) -> list[Unit]:
    """Units that still need work: training, or samples that are wanted now."""
    study = study.snapshot()
    wanted = wants(study)
    return [unit for unit in study.units if unit.id in wanted or not study.reader(unit).trained]


def _family(study: Study, family: Family) -> _Family:
    """Where a family stands. While it is open, what stands best now is what would be sampled again."""
    setup = study.setup_of(family[0][0])
    now = family_state(study, family)
    best = selection.best_of(selection.scored_checkpoints(study, family))
    if now.settled:
        return _Family(family, now.wants, best)
    members = frozenset(unit.id for setting in family for unit in setting)
    if setup.evaluation.budget == "adaptive" and family[0][0].is_trial:
        return _Family(family, now.wants, best, EVALUATING, members)
    if not setup.evaluation.rescore:
        return _Family(family, now.wants, best)
    rescored = {unit.id for unit in best.setting} if best else set()
    for setting in family:
        # A setting of several seeds may come to stand best only with its last seed: none of them is done before that.
        if len(setting) > 1 and not all(study.reader(unit).trained for unit in setting):
            rescored |= {unit.id for unit in setting}
    return _Family(family, now.wants, best, RESCORING, frozenset(rescored))


def _family_status(family: _Family, states: Mapping[str, str]) -> FamilyStatus:
    first = family.settings[0][0]
    counts: Counter[str] = Counter()
    for setting in family.settings:
        counts.update(states[unit.id] for unit in setting)
    name = method_label(first.method or BASE)
    if family.best is None:
        return FamilyStatus(first.setup, name, counts, None, None, None)
    knobs = family.best.setting[0].label.removeprefix(name).strip()
    return FamilyStatus(first.setup, name, counts, float(family.best.mean), knobs, family.best.step)


@dataclass(frozen=True)
class _View:
    """What the status of every unit rests on: the samples wanted now, and those that will be wanted `later`."""

    study: Study
    wanted: Wants
    later: Mapping[str, str]
    costs: Costs
    claimed: Mapping[str, list[Held]]  # unit id → slices that evaluators sample now
    left: dict[str, Left | None] = field(default_factory=dict)  # unit id → what it still takes, filled by `unit_status`

    def unit_status(self, unit: Unit) -> UnitStatus:
        run = self.study.reader(unit)
        steps_logged, last = run.last_metrics()
        ids = list(self.study.evaluation_ids(unit.setup).values())
        scores = selection.trajectory(run, ids) if unit.has_scores else {}
        best = selection.best_step(run, ids) if scores else None
        latest = max(scores, default=None)
        state = self._state(unit, run)
        running = state == "running"
        step = steps_logged if running else run.next_step
        left = self.left[unit.id] = None if state == "done" else self._left(unit, run, step)
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
            doing=self._doing(unit, run, state),
            attempt=note.attempt if note else None,
            attempts=note.attempts if note else None,
            seconds_needed=needed,
            method=unit.method,
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
            rescoring = all(sampling.draw == evaluation_protocol.FRESH for sampling in asked)
            return "waiting" if rescoring else "queued"
        if run.started:
            return "interrupted"
        return "queued" if all(self.study.reader(needed).trained for needed in unit.depends_on) else "waiting"

    def _phase(self, unit: Unit, run: RunReader, state: str) -> str | None:
        """What a unit does if it runs, else what it waits for."""
        if state == "running" and unit.id in self.claimed and not run.running:
            fresh = set(self.study.fresh_evaluation_ids(unit.setup).values())
            return RESCORING if self.claimed[unit.id][0].evaluation_id in fresh else EVALUATING
        if state == "running":
            note = run.phase()
            return note.name or None if note else None
        if state not in ("queued", "waiting"):
            return None
        if not run.trained:
            return TRAINING if unit.trains else EVALUATING
        asked = self.wanted.get(unit.id)
        if asked:
            return RESCORING if all(sampling.draw == evaluation_protocol.FRESH for sampling in asked) else EVALUATING
        return self.later.get(unit.id)

    def _doing(self, unit: Unit, run: RunReader, state: str) -> str:
        phase = self._phase(unit, run, state)
        if state == "running":
            if phase in (EVALUATING, RESCORING):
                return f"{phase} {self._evaluated(unit, run)}"
            note = run.phase()
            words = phase or "starting"
            return f"{words}, attempt {note.attempt} of {note.attempts}" if note and note.attempt > 1 else words
        if state == "waiting" and not run.trained:
            return "waiting for sft"
        if state == "waiting":
            return "waiting for rescoring" if phase == RESCORING else "waiting for its race"
        return "queued for evaluation" if state == "queued" and run.trained else state

    def _left(self, unit: Unit, run: RunReader, step: int) -> Left | None:
        return left_of(unit, work_left(self.study.experiment, unit, run, step, self._missing(unit, run)), self.costs)

    def _missing(self, unit: Unit, run: RunReader) -> dict[Sampling, int]:
        """Responses that the checkpoints of a unit lack now."""
        evaluation, lacking = self.study.setup_of(unit).evaluation, {}
        for sampling, samples in self.wanted.get(unit.id, {}).items():
            evaluation_id = self.study.evaluation_ids(unit.setup, sampling.draw)[sampling.benchmark]
            problems = evaluation_protocol.problems_wanted(evaluation, sampling.benchmark)
            parts = missing(run.slices(evaluation_id, sampling.step), problems, samples, [], problems * samples)
            lacking[sampling] = sum(part.responses for part in parts)
        return lacking

    def _evaluated(self, unit: Unit, run: RunReader) -> str:
        """`arithmetic_long 120/200`: how far the evaluation is that evaluators work on."""
        claim = self.claimed[unit.id][0]
        benchmark = claim.evaluation_id.rpartition("-")[0]
        problems = evaluation_protocol.problems_wanted(self.study.setup_of(unit).evaluation, benchmark)
        wanted = {
            samples * problems
            for sampling, samples in self.wanted.get(unit.id, {}).items()
            if (sampling.benchmark, sampling.step) == (benchmark, claim.step)
        }
        done = sum(part.responses for part in run.slices(claim.evaluation_id, claim.step))
        return f"{benchmark} {done}/{max(wanted, default=done)}"

    def _evaluation_error(self, unit: Unit, run: RunReader) -> str | None:
        """Why samples that are wanted of a unit could not be taken."""
        for sampling in self.wanted.get(unit.id, {}):
            evaluation_id = self.study.evaluation_ids(unit.setup, sampling.draw)[sampling.benchmark]
            error = run.evaluation_error(evaluation_id, sampling.step)
            if error is not None:
                return error
        return None


def _jobs(
    study: Study, left: Mapping[str, Left | None], states: Mapping[str, str], standings: list[_Family], costs: Costs
) -> list[Job]:
    """What is left: of the units, and of families once they are trained."""
    evaluator, jobs = study.experiment.runtime.placement, []
    for unit in study.units:
        if states[unit.id] not in ("done", "failed"):
            jobs.append(Job(unit, left[unit.id], evaluator))
    for family in standings:
        if family.later:
            later = left_once_trained(study.experiment, family.settings, costs)
            jobs.append(Job(family.settings[0][0], later, evaluator))
    return jobs
