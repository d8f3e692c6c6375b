"""A sweep at one moment, from its run directories alone: a row for each unit and each family."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orchestrator.config import Placement
from orchestrator.experiment.methods import BASE, method_label
from orchestrator.experiment.units import Family, Unit
from orchestrator.liveness.leases import Claims, Holder, drivers_of
from orchestrator.monitor.unit_status import (
    ENDED,
    Device,
    Left,
    UnitStatus,
    UnitView,
    device_hours,
    device_of,
    devices_of,
    hours_spent,
    left_of,
    left_once_trained,
    sweep_seconds,
    work_left,
)
from orchestrator.planning.numbers import Range
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

    @property
    def key(self) -> tuple[str, str]:
        """Its setup and label, which no other family has."""
        return self.setup, self.label


@dataclass(frozen=True)
class WorkingProcess:
    """A process that trains a unit, or samples the checkpoint after `step` steps of it.

    It holds so many `devices`. `gpu` is the number of its GPU, as it noted it with its latest
    finished work; empty before that and on CPUs.
    """

    holder: Holder
    devices: float
    gpu: str
    unit_id: str
    work: str
    step: int | None = None


@dataclass(frozen=True)
class Overview:
    """All units, and the sweep as a whole. `used` counts CPUs and GPUs that work on it.

    `seconds_left_range` estimates how long the sweep still takes on the devices that work on it
    now; None while unknown, or while nothing runs. Device-hours are hours of the `device`, which is
    `GPU`, or `core` if no unit uses a GPU. `device_hours_left` is None while unknown. Estimates are
    `calibrated` while they rest on the measurements of `trb calibrate` on the card.
    `tokens_a_second` counts the tokens that all trials in training sample together; None while none
    does. The sweep is `driven` while a `trb submit` or a worker is at work. `to_confirm` counts the
    units that will confirm open families and are not among `units` yet. `processes` are sorted by
    host and number.
    """

    units: Sequence[UnitStatus]
    families: Sequence[FamilyStatus] = ()
    session: Session | None = None
    used: Mapping[str, float] = field(default_factory=dict)
    seconds_left_range: Range | None = None
    device: Device = "core"
    device_hours_spent: float = 0.0
    device_hours_left: Range | None = None
    calibrated: bool = False
    tokens_a_second: float | None = None
    driven: bool = True
    to_confirm: int = 0
    processes: Sequence[WorkingProcess] = ()

    @property
    def done(self) -> int:
        """How many units have no work left, also those that a search stopped."""
        return sum(s.has_ended for s in self.units)

    @property
    def is_done(self) -> bool:
        return self.done == len(self.units)

    @property
    def steps(self) -> int:
        """Steps that the units have taken together."""
        return sum(s.step for s in self.units)

    @property
    def all_steps(self) -> int:
        """Steps that they take in the end; a unit that a search stopped takes no more."""
        return sum(s.step if s.state == "stopped" else s.steps for s in self.units)

    def in_state(self, state: str) -> list[UnitStatus]:
        """The units in one of the STATES."""
        return [s for s in self.units if s.state == state]

    @property
    def finished(self) -> frozenset[tuple[str, str]]:
        """Keys of the families whose units are all done.

        A damaged unit leaves none: the scores of its sweep cannot be read.
        """
        if self.in_state("damaged"):
            return frozenset()
        return frozenset(each.key for each in self.families if set(each.states) <= {*ENDED})

    def confirming(self, family: FamilyStatus) -> list[UnitStatus]:
        """The runs that confirm the choice of a family."""
        runs = [s for s in self.units if s.confirms is not None]
        return [s for s in runs if (s.setup, s.family) == family.key]

    @property
    def seconds_left(self) -> float | None:
        return self.seconds_left_range and self.seconds_left_range.mid

    @property
    def cluster(self) -> Mapping[str, float]:
        """CPU, GPU → how many there are; only the driver knows."""
        return self.session.cluster if self.session else {}

    @property
    def elapsed(self) -> float | None:
        """Seconds since the driver started."""
        return time.monotonic() - self.session.started if self.session else None

    @property
    def trials_an_hour(self) -> float | None:
        """The pace since the driver started; None before it has finished a trial."""
        if self.session is None or not self.elapsed:
            return None
        finished = sum(s.is_trial and s.has_ended for s in self.units) - self.session.trials_before
        return 3600 * finished / self.elapsed if finished > 0 else None

    def to_json(self) -> dict[str, Any]:
        """The sweep without its units."""
        names = (
            "seconds_left",
            "seconds_left_range",
            "elapsed",
            "trials_an_hour",
            "tokens_a_second",
        )
        names += ("used", "cluster", "driven", "to_confirm", "calibrated")
        names += ("device", "device_hours_spent", "device_hours_left")
        values = {name: getattr(self, name) for name in names}
        return {key: asdict(v) if isinstance(v, Range) else v for key, v in values.items()}


@dataclass(frozen=True)
class FamilyView:
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
        counts = Counter(states[unit.id] for unit in itertools.chain(*self.settings))
        known = FamilyStatus(first.setup, method_label(first.method or BASE), counts)
        if self.best is None:
            return known
        setting = self.best.setting[0].label.removeprefix(known.label).strip()
        return replace(known, score=float(self.best.mean), setting=setting, step=self.best.step)


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
    units, open_families = [], set[tuple[str, str]]()
    for unit in study.units:
        status = known.get(unit.id)
        if status is None:
            damage = damaged.get(unit.id)
            status = UnitStatus.of(unit, "damaged" if damage else "waiting", 0, error=damage)
            open_families.add((status.setup, status.family))
        units.append(status)
    families = []
    for family in made.families:
        if family.key in open_families:
            family = FamilyStatus(family.setup, family.label, family.states)
        families.append(family)
    unknown = {"seconds_left_range": None, "device_hours_left": None}
    return replace(made, units=units, families=families, **unknown)


def collect(study: Study) -> list[UnitStatus]:
    """Status of each unit, in the order of `units`."""
    return list(overview(study).units)


def seconds_left_on(study: Study, cluster: Mapping[str, float]) -> Range | None:
    """Seconds that the rest of a sweep takes alone on the CPUs and GPUs of `cluster`, if known."""
    return overview(study, Session(time.monotonic(), 0, cluster)).seconds_left_range


def _overview(study: Study, session: Session | None) -> Overview:
    families = [_family_view(study, family) for family in study.families()]
    seconds = study_seconds(study)
    views = _unit_views(study, families, seconds)
    statuses = [view.status for view in views]
    running = any(s.state == "running" for s in statuses)
    evaluator = study.experiment.runtime.placement.of_evaluator
    used, device = _used(views, evaluator), device_of(study)
    to_confirm = unconfirmed_units(study)
    jobs = _jobs(study, views, families, to_confirm, seconds)
    seconds_left = hours_left = None
    # A single job of unknown cost leaves the sweep without an estimate, which would be too low.
    if jobs is not None:
        hours_left = device_hours(jobs, evaluator, device)
        if running or (session and jobs):
            seconds_left = sweep_seconds(jobs, evaluator, session.cluster if session else used)
    rates = [view.tokens_a_second for view in views if view.tokens_a_second is not None]
    states = {s.id: s.state for s in statuses}
    return Overview(
        units=statuses,
        families=[family.status(states) for family in families],
        session=session,
        used=used,
        seconds_left_range=seconds_left,
        device=device,
        device_hours_spent=hours_spent(study),
        device_hours_left=hours_left,
        calibrated=seconds.calibrated,
        tokens_a_second=sum(rates) if rates else None,
        driven=bool(session or running or drivers_of(study.runs, study.experiment.name)),
        to_confirm=len(to_confirm),
        processes=_processes(views, evaluator, device),
    )


def _unit_views(
    study: Study, families: Sequence[FamilyView], seconds: StudySeconds
) -> list[UnitView]:
    """Each unit with the samples that are wanted of it."""
    wanted: Wants = {}
    later: dict[str, str] = {}
    for unit in study.units:
        wanted |= confirming_samples(study, unit)
    for family in families:
        wanted |= family.wants
        if family.later:
            later |= dict.fromkeys(family.candidates, family.later)
    claims, views = Claims(study.runs), []
    for unit in study.units:
        known = wanted.get(unit.id, {}), later.get(unit.id), claims.held(unit.id)
        views.append(UnitView(study, unit, *known, seconds))
    return views


def _family_view(study: Study, family: Family) -> FamilyView:
    """The view of a family; until it is settled, its best checkpoint so far counts as selected."""
    setup = study.setup_of(family[0][0])
    now = family_state(study, family)
    best = selection.best_of(selection.scored_checkpoints(study, family))
    if now.settled:
        return FamilyView(family, now.wants, best)
    if setup.evaluation.budget == "adaptive" and family[0][0].is_trial:
        members = frozenset(unit.id for unit in itertools.chain(*family))
        return FamilyView(family, now.wants, best, EVALUATING, members)
    if not setup.evaluation.rescore:
        return FamilyView(family, now.wants, best)
    rescored = {unit.id for unit in best.setting} if best else set()
    for setting in family:
        # The last samples of its last seed may make a setting of several seeds the best one. Until
        # they are taken, all its units may still be rescored.
        if len(setting) > 1 and any(
            unit.id in now.wants or not study.is_trained(unit) for unit in setting
        ):
            rescored |= {unit.id for unit in setting}
    return FamilyView(family, now.wants, best, RESCORING, frozenset(rescored))


def _jobs(
    study: Study,
    views: Sequence[UnitView],
    families: Sequence[FamilyView],
    to_confirm: Sequence[Unit],
    seconds: StudySeconds,
) -> list[Left] | None:
    """The work that is left; None while the cost of a part of it is unknown.

    It includes the later work: confirming runs of open families, and samples of families once
    trained.
    """
    jobs = [view.left for view in views if view.state not in (*ENDED, "failed")]
    for unit in to_confirm:
        work = work_left(study.experiment, unit, study.reader(unit), 0, {}, confirms=unit.is_trial)
        jobs.append(left_of(unit, work, seconds))
    for family in families:
        if family.later:
            jobs.append(left_once_trained(study.experiment, family.settings, seconds))
    known = [job for job in jobs if job is not None]
    return known if len(known) == len(jobs) else None


def _used(views: Sequence[UnitView], evaluator: Placement) -> dict[str, float]:
    """CPUs and GPUs of the processes that train units, and of evaluators.

    One evaluator samples the checkpoints of many units in turn, so evaluators are counted by the
    processes that hold slices, and not by units.
    """
    evaluators = {held.holder for view in views for held in view.claimed}
    placements = [evaluator] * len(evaluators)
    placements += [view.unit.placement for view in views if view.status.is_training]
    cpus = sum(placement.cpus for placement in placements)
    return {"CPU": cpus, "GPU": float(sum(placement.gpus for placement in placements))}


def _processes(
    views: Sequence[UnitView], evaluator: Placement, device: Device
) -> list[WorkingProcess]:
    """The processes that train units or evaluate checkpoints."""
    found: dict[Holder, WorkingProcess] = {}
    for view in views:
        if view.state != "running":
            continue
        unit, holder = view.unit, view.run.holder
        if holder is not None:
            held, gpu = devices_of(unit.placement, device), view.gpu_of(holder)
            work = view.phase or "starting"
            found[holder] = WorkingProcess(holder, held, gpu, unit.id, work)
        for claim in view.claimed:
            held, gpu = devices_of(evaluator, device), view.gpu_of(claim.holder)
            process = WorkingProcess(claim.holder, held, gpu, unit.id, "sampling", claim.step)
            # A process that also trains a unit is counted once, with the devices of that unit.
            found.setdefault(claim.holder, process)
    return sorted(found.values(), key=lambda process: (process.holder.host, process.holder.pid))
