"""Where every unit of an experiment stands, from the run directories alone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orchestrator.experiment.methods import BASE, method_label
from orchestrator.experiment.units import Family, Unit
from orchestrator.liveness.claims import Claims
from orchestrator.liveness.drivers import drivers_of
from orchestrator.monitor.time_left import (
    Left,
    UnitLeft,
    device_hours,
    left_of,
    left_once_trained,
    sweep_seconds,
    work_left,
)
from orchestrator.monitor.timeline import Device, device_of, hours_spent
from orchestrator.monitor.timings import Costs, measure, tokens_a_second
from orchestrator.monitor.unit_status import UnitStatus, UnitView, unread_status
from orchestrator.planning.ranges import Range
from orchestrator.records.columns import EVALUATING, RESCORING
from orchestrator.selection import scores as selection
from orchestrator.selection.confirmation import unconfirmed_units, with_confirmation
from orchestrator.selection.damage import damaged_units
from orchestrator.selection.samples_wanted import Wants, confirming_samples, family_state, wants
from orchestrator.selection.study import Study


@dataclass(frozen=True)
class Session:
    """Facts that only the driver knows: its start (monotonic), the trials done before it, and its
    cluster.
    """

    started: float
    trials_before: int
    cluster: Mapping[str, float]  # CPU, GPU → how many there are


def seconds_left_on(study: Study, cluster: Mapping[str, float]) -> Range | None:
    """Seconds that the rest of a sweep takes on CPUs and GPUs that do nothing else; None before
    units were timed.
    """
    return overview(study, Session(time.monotonic(), 0, cluster)).seconds_left_range


@dataclass(frozen=True)
class FamilyStatus:
    """The trials of one method in one setup, or the untrained student: how many stand where, and
    what is best so far.

    `score` is the mean over seeds and benchmarks in [0, 1] of the checkpoint after `step` in
    `setting`, all None before there is one that all seeds of a setting have.
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

    `seconds_left` and their `seconds_left_range` say how long the sweep still takes on what works
    on it now; None while unknown, or while nothing runs. Device-hours are hours of the `device`,
    which is `GPU`, or `core` where no unit uses a GPU: those that were spent so far, and an
    estimate of those that are left, None while unknown. Estimates are `calibrated` while they rest
    on what `trb calibrate` measured on the card. `tokens_a_second` are those that the units in
    training sample together, None while none does. `driven`: whether a `trb submit` or a worker is
    at work. `to_confirm` counts units that will confirm open families; they are not among the units
    yet.
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
        return {
            name: value for name, value in asdict(self).items() if name not in ("units", "families")
        }


@dataclass(frozen=True)
class _Family:
    """The samples that a family wants now, and its best checkpoint so far.

    Once it is trained it will want `later` samples (EVALUATING or RESCORING) of some of the units
    in `candidates`.
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
        return _overview(with_confirmation(study), session)
    sound = [unit for unit in study.units if not damaged.keys() & {unit.id, *unit.depends_on}]
    made = _overview(study.with_units(sound), session)
    known = {s.id: s for s in made.units}
    statuses = [
        known.get(unit.id) or unread_status(unit, damaged.get(unit.id)) for unit in study.units
    ]
    unread = {
        (unit.setup, method_label(unit.method or BASE))
        for unit in study.units
        if unit.id not in known
    }
    families = []
    for family in made.families:
        is_known = (family.setup, family.label) not in unread
        families.append(
            family if is_known else replace(family, score=None, setting=None, step=None)
        )
    unknown = {"seconds_left": None, "seconds_left_range": None, "device_hours_left": None}
    return replace(made, units=statuses, families=families, **unknown)


def _overview(study: Study, session: Session | None) -> Overview:
    standings = [_family(study, family) for family in study.families()]
    wanted: Wants = {}
    later: dict[str, str] = {}
    for unit in study.units:
        wanted |= confirming_samples(study, unit)
    for family in standings:
        wanted |= family.wants
        if family.later:
            later |= dict.fromkeys(family.candidates, family.later)
    costs = measure(study)
    claims = Claims(study.runs)
    claimed = {unit.id: held for unit in study.units if (held := claims.held(unit.id))}
    view = UnitView(study, wanted, later, costs, claimed)
    statuses = [view.unit_status(unit) for unit in study.units]
    states = {s.id: s.state for s in statuses}
    families = [_family_status(family, states) for family in standings]
    running = [s for s in statuses if s.state == "running"]
    # A unit whose checkpoints are being sampled is running too, but on what its evaluators hold:
    # one evaluator works at many units in turn, so evaluators are counted by their processes.
    training = [s for s in running if s.phase not in (EVALUATING, RESCORING)]
    evaluators = len({each.holder for held in claimed.values() for each in held})
    placement = study.experiment.runtime.placement.of_evaluator
    used = {
        "CPU": sum([s.cpus for s in training] + [placement.cpus] * evaluators),
        "GPU": float(sum(s.gpus for s in training) + evaluators * placement.gpus),
    }
    later_units = unconfirmed_units(study)
    jobs, device = _jobs(study, view.left, states, standings, later_units, costs), device_of(study)
    left = (
        sweep_seconds(jobs, session.cluster if session else used)
        if running or (session and jobs)
        else None
    )
    rates = [
        rate
        for s in training
        if s.is_trial and (rate := tokens_a_second(study.reader(s.id))) is not None
    ]
    made = Overview(
        statuses,
        families,
        left and left.mid,
        used=used,
        seconds_left_range=left,
        device=device,
        device_hours_spent=hours_spent(study),
        device_hours_left=device_hours(jobs, device),
        calibrated=costs.calibrated,
        tokens_a_second=sum(rates) if rates else None,
        to_confirm=len(later_units),
        driven=bool(session or running or drivers_of(study.runs, study.experiment.name)),
    )
    if session is None:
        return made
    elapsed = time.monotonic() - session.started
    finished = sum(s.is_trial and s.state == "done" for s in statuses) - session.trials_before
    rate = 3600 * finished / elapsed if finished > 0 and elapsed else None
    return replace(made, elapsed=elapsed, trials_an_hour=rate, cluster=session.cluster)


def missing_units(study: Study) -> list[Unit]:
    """Units that still need work: training, or samples that are wanted now."""
    study = with_confirmation(study.snapshot())
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
        # A setting of several seeds may come to stand best only with the last samples of its last
        # seed: none of them is done before those.
        if len(setting) > 1 and any(
            unit.id in now.wants or not study.reader(unit).trained for unit in setting
        ):
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


def _jobs(
    study: Study,
    left: Mapping[str, Left | None],
    states: Mapping[str, str],
    standings: list[_Family],
    to_confirm: Sequence[Unit],
    costs: Costs,
) -> list[UnitLeft]:
    """List the remaining work of units, of runs to confirm open families, and of families once they
    are trained.
    """
    evaluator, jobs = study.experiment.runtime.placement.of_evaluator, []
    for unit in study.units:
        if states[unit.id] not in ("done", "failed"):
            jobs.append(UnitLeft(unit, left[unit.id], evaluator))
    for unit in to_confirm:
        work = work_left(study.experiment, unit, study.reader(unit), 0, {}, confirms=unit.is_trial)
        jobs.append(UnitLeft(unit, left_of(unit, work, costs), evaluator))
    for family in standings:
        if family.later:
            later = left_once_trained(study.experiment, family.settings, costs)
            jobs.append(UnitLeft(family.settings[0][0], later, evaluator))
    return jobs
