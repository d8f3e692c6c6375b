"""Runs a sweep as one long Tuner: Tune asks for work, places it, and replaces dead processes.

Call `prepare.prepare_environment` before importing this module.
"""

from __future__ import annotations

import functools
import logging
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.execution import class_cache
from ray.tune.search import Searcher
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.errors import LeaseHeld
from orchestrator.experiment.units import Unit, checkpoint_steps
from orchestrator.liveness.heartbeat import (
    Beat,
    Watchdog,
    end_process,
    pulse_path,
    read_beat,
    watching,
)
from orchestrator.liveness.leases import Claims
from orchestrator.liveness.processes import scratch_folder
from orchestrator.monitor.unit_status import device_of, devices_of, hours_spent
from orchestrator.planning.seconds import StudySeconds, study_seconds
from orchestrator.planning.work import steps_left
from orchestrator.records.clock import BLENDED, PLAIN
from orchestrator.records.log import RunLog
from orchestrator.records.provenance import provenance
from orchestrator.records.writer import RunWriter, forget_evaluation_errors
from orchestrator.selection.asking import with_asked
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.halving import with_halving
from orchestrator.selection.pending_slices import PendingSlice, pending_slices
from orchestrator.selection.retention import prune
from orchestrator.selection.study import Study
from orchestrator.sweep.asking import ask
from orchestrator.sweep.nodes import AnyNode
from orchestrator.sweep.prepare import worker_spec
from orchestrator.sweep.processes import (
    FULL_DISK,
    LABELS,
    LACK,
    SAMPLED,
    UNFIT,
    Sweep,
    WorkTrainable,
    config_of,
)
from orchestrator.sweep.schedule import (
    Evaluating,
    Schedule,
    SlicesLeft,
    TrainUnit,
    Work,
    in_order,
    places,
)
from orchestrator.workers.spec import Pairs, bundles, evaluator_bundles, resolved

# --- limits the device-hours of an experiment (`trb submit --max-gpu-hours`) ---
#
# A piece is the work of one commit: the training of a unit up to its next checkpoint or saved state,
# or a slice of an evaluation.


@dataclass(frozen=True)
class Spending:
    """A study's clocks at one moment: device-hours `spent`, seconds of steps and responses."""

    study: Study
    spent: float
    seconds: StudySeconds

    def next_piece(self, work: Work) -> float:
        """Device-hours that the current piece of `work` is still expected to take; 0 while unknown."""
        if isinstance(work, TrainUnit):
            placement = work.unit.placement
            seconds = self._to_next_commit(work.unit)
        else:
            placement = self.study.experiment.runtime.placement.of_evaluator
            seconds = self._of_a_slice()
        return seconds * devices_of(placement, device_of(self.study)) / 3600

    def _to_next_commit(self, unit: Unit) -> float:
        run, saves = self.study.reader(unit), self.study.experiment.runtime.save_every_s
        logged, _ = run.last_metrics()
        for checkpoint in checkpoint_steps(unit, self.study.setup_of(unit)):
            if checkpoint > run.next_step:
                first = min(max(logged, run.next_step), checkpoint)
                blended = steps_left(unit, first)[0] - steps_left(unit, checkpoint)[0]
                plain = checkpoint - first - blended
                seconds = self._seconds(unit, BLENDED, blended) + self._seconds(unit, PLAIN, plain)
                return min(seconds, saves + seconds / max(1, checkpoint - first))
        return 0.0

    def _of_a_slice(self) -> float:
        """Seconds of a slice of the dearest benchmark, since an evaluator chooses its slice itself."""
        responses = self.study.experiment.runtime.slice_responses
        dearest = 0.0
        for name, setup in self.study.experiment.setups.items():
            for unit in self.study.units_of(name)[:1]:
                for benchmark in setup.evaluation.benchmarks:
                    dearest = max(dearest, self._seconds(unit, benchmark, responses))
        return dearest

    def _seconds(self, unit: Unit, kind: str, amount: int) -> float:
        cost = self.seconds.of(unit, kind) if amount else None
        return 0.0 if cost is None else amount * cost.mid


def spending(study: Study) -> Spending:
    """Read the clocks in the run directories."""
    study = with_confirmation(study.snapshot())
    return Spending(study, hours_spent(study), study_seconds(study))


@dataclass
class HoursLimit:
    """At most `limit` device-hours; once it has refused a piece it stays closed.

    Earlier hours count, since the limit is for the experiment and not for one call of `trb submit`.
    """

    limit: float
    read: Callable[[], Spending]
    closed: bool = False

    def allows(self, work: Work, beside: Iterable[Work]) -> bool:
        """Whether `work` may do its next piece while the work `beside` it ends its own pieces."""
        now = self.read()
        own = now.next_piece(work)
        if isinstance(work, TrainUnit) and now.study.reader(work.unit).next_step >= work.unit.steps:
            return True  # only the end of the training is left to be recorded
        if not self.closed:
            expected = own
            for other in beside:
                expected += now.next_piece(other)
            self.closed = now.spent + expected > self.limit
        return not self.closed


# --- runs a sweep as one long Tuner: Tune asks for work, places it, and replaces dead processes ---


ATTEMPTS = 3  # of a unit or a slice whose processes die
# Between two looks for wanted samples: seconds, and durations of a look, at the least.
LOOK_S = 2.0
LOOK_FACTOR = 20
CAPACITY_S = 5.0  # between two looks at the cluster's resources


def run_sweep(
    study: Study,
    pairs: Pairs,
    nodes: AnyNode | None = None,
    process: type[tune.Trainable] = WorkTrainable,
    max_hours: float | None = None,
) -> bool:
    """Run missing training and take the samples that its results want, until nothing is missing.

    A unit that fails is left out, with the units that need it. Work runs on `nodes`, in processes
    of the class `process`. `max_hours` limits the device-hours in the run directories, earlier ones
    included. If another piece of work would pass it, no more work begins, running work ends at its
    next commit, and the function returns True. A full disk ends the sweep in the same way, with an
    OSError.
    """
    nodes = nodes or AnyNode()
    for unit in study.units:
        Claims(study.runs).forget_lost(unit.id)
        forget_evaluation_errors(study.reader(unit))
    _describe_untrained(study, pairs)
    # The sweep reports failures from the run directories; Tune's own reports would bury them.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    # Tune would pass cloud keys to its trials through command lines and a log that other users can
    # read. No trial needs them; processes of a private cluster inherit the environment anyway.
    class_cache.ENV_VARS_TO_PROPAGATE = {
        name for name in class_cache.ENV_VARS_TO_PROPAGATE if not name.startswith("AWS_")
    }
    sweep = Sweep(study, pairs, uuid.uuid4().hex, ATTEMPTS, nodes.requirements)
    works = SweepSearcher(sweep, nodes, max_hours)
    trainable = tune.with_resources(
        tune.with_parameters(process, sweep=sweep),
        lambda config: placement(_bundles(study, sweep.work_of(config)), config[LABELS]),
    )
    start_s = study.experiment.runtime.engine_start_s
    end = functools.partial(_end_frozen, study.runs)
    watchdog = Watchdog(study.runs, works.names, end, start_s)
    with scratch_folder() as storage, watching(watchdog):
        tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(search_alg=works, num_samples=-1, reuse_actors=True),
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=str(storage),
                verbose=0,
                stop=works,
                failure_config=tune.FailureConfig(max_failures=ATTEMPTS - 1),
                checkpoint_config=tune.CheckpointConfig(
                    checkpoint_frequency=0, checkpoint_at_end=False
                ),
            ),
        ).fit()
    if works.full_disk is not None:
        raise OSError(*works.full_disk)
    prune(study)
    return works.limit_reached


def placement(
    bundles: list[dict[str, float]], labels: dict[str, str]
) -> tune.PlacementGroupFactory:
    """Placement group of these bundles on nodes that have the labels."""
    more: dict[str, Any] = {"bundle_label_selector": [labels] * len(bundles)} if labels else {}
    return tune.PlacementGroupFactory(bundles, **more)


def _bundles(study: Study, work: Work) -> list[dict[str, float]]:
    match work:
        case TrainUnit(unit):
            return bundles(unit.placement)
        case Evaluating():
            return evaluator_bundles(study.experiment.runtime.placement)


class SweepSearcher(Searcher, tune.Stopper):
    """Answers Tune's requests for trials from the schedule, and tells running work when to stop."""

    def __init__(self, sweep: Sweep, nodes: AnyNode, max_hours: float | None = None):
        Searcher.__init__(self, metric=None, mode=None)
        self._sweep = sweep
        self._study = sweep.study
        self._nodes = nodes
        exploring = with_asked(self._study.exploring()).units
        trained = {unit.id for unit in exploring if self._study.reader(unit).trained}
        self._left = _Lately(self._look, LOOK_S)
        self._halved = with_halving(self._study.exploring().snapshot()).halved
        self._schedule = Schedule(
            exploring,
            trained,
            self._needs,
            self._left,
            has_place=self._has_place,
            at_goal=self._at_goal,
        )
        self._capacity = _Lately(nodes.capacity, CAPACITY_S)
        self._spending = _Lately(functools.partial(spending, self._study), 0.0)
        self._budget = None if max_hours is None else HoursLimit(max_hours, self._spending)
        self._schedule.affordable = self._affordable
        self.full_disk: list[Any] | None = None  # the arguments of the OSError that ends the sweep

    @property
    def limit_reached(self) -> bool:
        """Whether work was left undone because it would have passed the limit of device-hours."""
        return self._budget is not None and self._budget.closed

    def names(self) -> list[str]:
        """Names under which the running work gives signs of life."""
        return [self._sweep.name_of(work) for work in list(self._schedule.running.values())]

    # --- called by Tune ---

    def suggest(self, trial_id: str) -> dict[str, Any] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        decision = self._schedule.decide(self._capacity())
        if not isinstance(decision, str):
            # A node may have been lost since the last look. Work meant for it would wait for ever
            # if all other nodes are new: its labels exclude nodes that had not answered, even after
            # they answer.
            self._capacity.forget()
            decision = self._schedule.decide(self._capacity())
        if decision == "finished":
            return Searcher.FINISHED  # pyright: ignore[reportReturnType]
        if decision == "wait":
            return None
        self._schedule.start(trial_id, decision)
        return config_of(decision, self._nodes.labels())

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        work = self._schedule.running.get(trial_id)
        if work is None:
            return
        if result and UNFIT in result:  # counts as no attempt: the unit has not begun
            self._nodes.reject(result[UNFIT], result[LACK])
            self._schedule.give_back(trial_id)
        elif isinstance(work, TrainUnit):
            if error:
                _note_loss(self._study, work.unit)
            trained = self._study.reader(work.unit).trained
            if not error and not trained and self._at_goal(work.unit):
                self._schedule.give_back(trial_id)
            else:
                self._schedule.end(trial_id, trained)
        else:
            self._schedule.end(trial_id, not error)
        self._left.forget()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether the work that runs as `trial_id` should stop after this result."""
        if result.get(SAMPLED):
            self._schedule.sampled()
        self.full_disk = self.full_disk or result.get(FULL_DISK)
        return self._schedule.must_yield(trial_id, self._capacity())

    def stop_all(self) -> bool:
        return False

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the run directories hold all state."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing; see `save`."""

    # --- called by the schedule ---

    def _needs(self, work: Work) -> dict[str, float]:
        needs: dict[str, float] = {}
        for bundle in _bundles(self._study, work):
            for kind, amount in bundle.items():
                needs[kind] = needs.get(kind, 0.0) + amount
        return needs

    def _affordable(self, work: Work, beside: Sequence[Work]) -> bool:
        if self.full_disk is not None:
            return False
        return self._budget is None or self._budget.allows(work, beside)

    def _has_place(self, work: Work) -> bool:
        wanted = _bundles(self._study, work)
        # Bundles of at most one GPU fit wherever enough GPUs are free: Ray spreads them.
        if all(bundle.get("GPU", 0.0) <= 1 for bundle in wanted):
            return True
        return places(wanted, self._nodes.free())

    def _at_goal(self, unit: Unit) -> bool:
        halved = self._halved.get(unit.id)
        # A unit at its last step has no rung left, and its end is still to be recorded.
        if halved is None or halved.goal == unit.steps:
            return False
        return halved.stopped or self._study.reader(unit).next_step >= halved.goal

    def _look(self) -> SlicesLeft:
        """Count the wanted slices, find rungs and confirming units, and drop unneeded checkpoints."""
        prune(self._study.snapshot())
        ask(with_asked(self._study.exploring().snapshot()))
        study = with_confirmation(self._study.snapshot())
        self._halved = study.halved
        self._explore(study)
        self._confirm(study)
        pending = list(pending_slices(study))
        return SlicesLeft(len(pending), self._elsewhere(pending))

    def _explore(self, study: Study) -> None:
        """Schedule the units of points that the search asked for since the last look."""
        units = study.exploring().units
        scheduled = {unit.id for unit in self._schedule.units}
        new = [unit for unit in units if unit.trains and unit.id not in scheduled]
        for unit in new:
            self._begin(study, unit)
        if new:
            self._schedule.units = in_order(units)

    def _begin(self, study: Study, unit: Unit) -> None:
        Claims(study.runs).forget_lost(unit.id)
        if study.reader(unit).trained:
            self._schedule.trained.add(unit.id)

    def _confirm(self, study: Study) -> None:
        """Schedule the units that confirm settled families, with their supervised stages."""
        explored = {unit.id for unit in self._schedule.units}
        scheduled = {unit.id for unit in self._schedule.confirming}
        confirming: list[Unit] = []
        for unit in study.units:
            if not unit.trains or unit.id in explored:
                continue
            confirming.append(unit)
            if unit.id not in scheduled:
                self._begin(study, unit)
        self._schedule.confirming = confirming

    def _elsewhere(self, pending: Iterable[PendingSlice]) -> int:
        """Count the claims of other sweeps' processes on slices of these evaluations."""
        runs = self._study.runs
        wanted: dict[str, set[tuple[str, int]]] = {}  # unit id → (evaluation id, step)
        for part in pending:
            evaluations = wanted.setdefault(part.unit_id, set())
            evaluations.add((part.evaluation_id, part.sampling.step))
        ours: set[tuple[str, int]] = set()
        for name in self.names():
            beat = read_beat(pulse_path(runs, name))
            if beat is not None:
                ours.add((beat.host, beat.pid))
        count = 0
        for unit_id, evaluations in wanted.items():
            for claim in Claims(runs).held(unit_id):
                is_wanted = (claim.evaluation_id, claim.step) in evaluations
                if is_wanted and (claim.holder.host, claim.holder.pid) not in ours:
                    count += 1
        return count


class _Lately:
    """Cache a function's result for `seconds`, or longer if a call takes long.

    A look at many run directories on a slow disk then takes a twentieth of the driver's time.
    """

    def __init__(self, ask: Callable[[], Any], seconds: float):
        self._ask = ask
        self._seconds = seconds
        self._until = 0.0
        self._answer: Any = None

    def __call__(self) -> Any:
        begun = time.monotonic()
        if begun >= self._until:
            self._answer = self._ask()
            now = time.monotonic()
            self._until = now + max(self._seconds, LOOK_FACTOR * (now - begun))
        return self._answer

    def forget(self) -> None:
        """Ask again at the next call."""
        self._until = 0.0


def _describe_untrained(study: Study, pairs: Pairs) -> None:
    """Write the run directories of the untrained students, which evaluators need."""
    for unit in study.units:
        if unit.is_untrained and not study.reader(unit).trained:
            with suppress(LeaseHeld), closing(RunWriter(study.runs, unit.id)) as run:
                spec = worker_spec(unit, study.experiment, study.runs, pairs[unit.setup])
                run.describe(resolved(spec), provenance, spec.trained_from)
                run.finish()


def _note_loss(study: Study, unit: Unit) -> None:
    """Record why a unit failed if its processes were killed before they could."""
    if study.reader(unit).error is None:
        with suppress(LeaseHeld), closing(RunWriter(study.runs, unit.id)) as run:
            run.fail(f"lost: its process died in each of {ATTEMPTS} attempts", "")


def _end_frozen(runs: Path, name: str, beat: Beat, reason: str) -> None:
    """Kill the process of a beat, on its node of the cluster, and note why in its log."""
    RunLog(runs / name).line(f"process {beat.pid} {reason}: ended by the watchdog")
    if beat.host == socket.gethostname():
        end_process(beat.pid, beat.born)
        return
    strategy = NodeAffinitySchedulingStrategy(beat.node, soft=False)
    ray.remote(end_process).options(scheduling_strategy=strategy, num_cpus=0).remote(
        beat.pid, beat.born
    )
