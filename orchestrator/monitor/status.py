"""How far every unit of an experiment is, from the run directories alone."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orchestrator.experiment.methods import BASE, method_label
from orchestrator.experiment.units import Family, Unit
from orchestrator.liveness.leases import Claims, Held, drivers_of
from orchestrator.monitor.device_hours import Device, device_of, hours_spent
from orchestrator.monitor.time_left import (
    Left,
    device_hours,
    left_of,
    left_once_trained,
    sweep_seconds,
    work_left,
)
from orchestrator.monitor.unit_status import UnitStatus, UnitView, tokens_a_second
from orchestrator.planning.ranges import Range
from orchestrator.planning.seconds import StudySeconds, study_seconds
from orchestrator.records.log import EVALUATING, RESCORING
from orchestrator.selection import scores as selection
from orchestrator.selection.confirmation import unconfirmed_units, with_confirmation
from orchestrator.selection.loading import damaged_units
from orchestrator.selection.samples_wanted import Wants, confirming_samples, family_state
from orchestrator.selection.study import Study


@dataclass(frozen=True)
class Session:
    """Facts that only the driver knows.

    The driver `started` at a time of the monotonic clock, when `trials_before` were done already.
    """

    started: float
    trials_before: int
    cluster: Mapping[str, float]  # CPU, GPU → how many there are

    def pace(self, statuses: Sequence[UnitStatus]) -> tuple[float, float | None]:
        """Seconds since the start, and finished trials per hour; None before the first finishes."""
        elapsed = time.monotonic() - self.started
        finished = sum(s.is_trial and s.state == "done" for s in statuses) - self.trials_before
        return elapsed, 3600 * finished / elapsed if finished > 0 and elapsed else None


def seconds_left_on(study: Study, cluster: Mapping[str, float]) -> Range | None:
    """Seconds that the rest of a sweep takes alone on the CPUs and GPUs of `cluster`, if known."""
    return overview(study, Session(time.monotonic(), 0, cluster)).seconds_left_range


@dataclass(frozen=True)
class FamilyStatus:
    """The trials of one method in one setup, or the untrained student.

    `states` counts its units by state. The best checkpoint is that of `setting` after `step` steps,
    and `score`, in [0, 1], is its mean over seeds and benchmarks. All three are None until every
    seed of a setting has a checkpoint with scores.
    """

    setup: str
    label: str
    states: Mapping[str, int]
    score: float | None = None
    setting: str | None = None
    step: int | None = None


@dataclass(frozen=True)
class Overview:
    """All units, and the sweep as a whole. `used` and `cluster` count CPUs and GPUs.

    `seconds_left` and its `seconds_left_range` estimate how long the sweep still takes on the
    devices that work on it now; None while unknown, or while nothing runs. Device-hours are hours
    of the `device`, which is `GPU`, or `core` if no unit uses a GPU. `device_hours_left` is None
    while unknown. Estimates are `calibrated` while they rest on the measurements of `trb calibrate`
    on the card. `tokens_a_second` counts the tokens that all trials in training sample together;
    None while none does. The sweep is `driven` while a `trb submit` or a worker is at work.
    `to_confirm` counts the units that will confirm open families and are not among `units` yet.
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
    calibrated: bool = False
    tokens_a_second: float | None = None
    driven: bool = True
    to_confirm: int = 0

    def to_json(self) -> dict[str, Any]:
        """The sweep without its units."""
        values = asdict(replace(self, units=[], families=[]))
        del values["units"], values["families"]
        return values


@dataclass(frozen=True)
class _FamilyView:
    """The samples that a family wants now, and its best checkpoint so far.

    Once it is trained it will want `later` samples (EVALUATING or RESCORING) of some of the units
    in `candidates`.
    """

    settings: Family
    wants: Wants
    best: selection.ScoredCheckpoint | None
    later: str | None = None
    candidates: frozenset[str] = frozenset()

    def status(self, states: Mapping[str, str]) -> FamilyStatus:
        """The family by the `states` of the units."""
        first = self.settings[0][0]
        counts = Counter[str]()
        for setting in self.settings:
            for unit in setting:
                counts[states[unit.id]] += 1
        label = method_label(first.method or BASE)
        if self.best is None:
            return FamilyStatus(first.setup, label, counts)
        return FamilyStatus(
            setup=first.setup,
            label=label,
            states=counts,
            score=float(self.best.mean),
            setting=self.best.setting[0].label.removeprefix(label).strip(),
            step=self.best.step,
        )


def collect(study: Study) -> list[UnitStatus]:
    """Status of each unit, in the order of `units`."""
    return overview(study).units


def overview(study: Study, session: Session | None = None) -> Overview:
    """Status of each unit, in the order of `units`, and of the sweep; safe while it runs.

    A unit with damaged files is `damaged`. The best checkpoint of its family and the time left are
    then unknown.
    """
    study = study.snapshot()
    damaged = damaged_units(study)
    if not damaged:
        return _overview(with_confirmation(study), session)
    sound = [unit for unit in study.units if not damaged.keys() & {unit.id, *unit.depends_on}]
    made = _overview(study.with_units(sound), session)
    known = {s.id: s for s in made.units}
    statuses: list[UnitStatus] = []
    open_families: set[tuple[str, str]] = set()
    for unit in study.units:
        if unit.id in known:
            statuses.append(known[unit.id])
            continue
        damage = damaged.get(unit.id)
        state = "damaged" if damage else "waiting"
        statuses.append(UnitStatus.of(unit, state, 0, error=damage))
        open_families.add((unit.setup, method_label(unit.method or BASE)))
    families = []
    for family in made.families:
        if (family.setup, family.label) in open_families:
            family = FamilyStatus(family.setup, family.label, family.states)
        families.append(family)
    unknown = {"seconds_left": None, "seconds_left_range": None, "device_hours_left": None}
    return replace(made, units=statuses, families=families, **unknown)


def _overview(study: Study, session: Session | None) -> Overview:
    families = [_family_view(study, family) for family in study.families()]
    wanted: Wants = {}
    later: dict[str, str] = {}
    for unit in study.units:
        wanted |= confirming_samples(study, unit)
    for family in families:
        wanted |= family.wants
        if family.later:
            later |= dict.fromkeys(family.candidates, family.later)
    seconds = study_seconds(study)
    claims = Claims(study.runs)
    statuses: list[UnitStatus] = []
    jobs: list[Left | None] = []
    held: list[Held] = []
    for unit in study.units:
        claimed = claims.held(unit.id)
        view = UnitView(study, unit, wanted.get(unit.id, {}), later.get(unit.id), claimed)
        left = None if view.state == "done" else view.left(seconds)
        statuses.append(view.status(left))
        held += claimed
        if view.state not in ("done", "failed"):
            jobs.append(left)
    to_confirm = unconfirmed_units(study)
    jobs += _later_jobs(study, families, to_confirm, seconds)
    known = [job for job in jobs if job is not None]
    evaluator = study.experiment.runtime.placement.of_evaluator
    device = device_of(study)
    running = any(s.state == "running" for s in statuses)
    used = _used(study, statuses, held)
    cluster = session.cluster if session else {}
    seconds_left = hours_left = None
    # A single job of unknown cost leaves the sweep without an estimate, which would be too low.
    if len(known) == len(jobs):
        hours_left = device_hours(known, evaluator, device)
        if running or (session and jobs):
            seconds_left = sweep_seconds(known, evaluator, cluster if session else used)
    elapsed, trials_an_hour = session.pace(statuses) if session else (None, None)
    states = {s.id: s.state for s in statuses}
    return Overview(
        units=statuses,
        families=[family.status(states) for family in families],
        seconds_left=seconds_left and seconds_left.mid,
        elapsed=elapsed,
        trials_an_hour=trials_an_hour,
        used=used,
        cluster=cluster,
        seconds_left_range=seconds_left,
        device=device,
        device_hours_spent=hours_spent(study),
        device_hours_left=hours_left,
        calibrated=seconds.calibrated,
        tokens_a_second=_tokens_a_second(study, statuses),
        driven=bool(session or running or drivers_of(study.runs, study.experiment.name)),
        to_confirm=len(to_confirm),
    )


def _family_view(study: Study, family: Family) -> _FamilyView:
    """The view of a family; until it is settled, its best checkpoint so far counts as selected."""
    setup = study.setup_of(family[0][0])
    now = family_state(study, family)
    best = selection.best_of(selection.scored_checkpoints(study, family))
    if now.settled:
        return _FamilyView(family, now.wants, best)
    if setup.evaluation.budget == "adaptive" and family[0][0].is_trial:
        members = frozenset(unit.id for unit in itertools.chain(*family))
        return _FamilyView(family, now.wants, best, EVALUATING, members)
    if not setup.evaluation.rescore:
        return _FamilyView(family, now.wants, best)
    rescored = {unit.id for unit in best.setting} if best else set()
    for setting in family:
        # The last samples of its last seed may make a setting of several seeds the best one. Until
        # they are taken, all its units may still be rescored.
        if len(setting) > 1 and any(
            unit.id in now.wants or not study.reader(unit).trained for unit in setting
        ):
            rescored |= {unit.id for unit in setting}
    return _FamilyView(family, now.wants, best, RESCORING, frozenset(rescored))


def _later_jobs(
    study: Study,
    families: Sequence[_FamilyView],
    to_confirm: Sequence[Unit],
    seconds: StudySeconds,
) -> list[Left | None]:
    """The later work: confirming runs of open families, and samples of families once trained.

    None is work of an unknown cost.
    """
    jobs: list[Left | None] = []
    for unit in to_confirm:
        work = work_left(study.experiment, unit, study.reader(unit), 0, {}, confirms=unit.is_trial)
        jobs.append(left_of(unit, work, seconds))
    for family in families:
        if family.later:
            jobs.append(left_once_trained(study.experiment, family.settings, seconds))
    return jobs


def _used(study: Study, statuses: Sequence[UnitStatus], held: Sequence[Held]) -> dict[str, float]:
    """CPUs and GPUs of the processes that train units, and of evaluators.

    One evaluator samples the checkpoints of many units in turn, so evaluators are counted by the
    processes that hold slices, and not by units.
    """
    evaluators = len({each.holder for each in held})
    placement = study.experiment.runtime.placement.of_evaluator
    cpus, gpus = [placement.cpus] * evaluators, [placement.gpus] * evaluators
    for s in statuses:
        if s.is_training:
            cpus.append(s.cpus)
            gpus.append(s.gpus)
    return {"CPU": sum(cpus), "GPU": float(sum(gpus))}


def _tokens_a_second(study: Study, statuses: Sequence[UnitStatus]) -> float | None:
    """Tokens that all trials in training sample together; None before the first step of one."""
    total = None
    for s in statuses:
        rate = tokens_a_second(study.reader(s.id)) if s.is_training and s.is_trial else None
        if rate is not None:
            total = rate + (total or 0.0)
    return total
