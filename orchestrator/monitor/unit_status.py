"""How far a unit is, and the device-hours and the time that a sweep has left.

A unit has a state and a phase, and surfaces have names for both: `commands.unit_rows` makes the
rows of status, submit and view from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from orchestrator.config import Experiment, Placement
from orchestrator.experiment.evaluation_protocol import (
    FRESH,
    Sampling,
    problems_wanted,
    rungs,
    samples_at_once,
)
from orchestrator.experiment.methods import BASE, method_label
from orchestrator.experiment.units import Family, Kind, OfKind, Unit, setup_of
from orchestrator.liveness.leases import Held, Holder
from orchestrator.planning.numbers import NOTHING, SCENARIOS, Range, Scenario
from orchestrator.planning.seconds import StudySeconds, on_the_clock
from orchestrator.planning.work import (
    checkpoints_evaluated,
    evaluation_generations,
    expected_share,
    family_size,
    steps_left,
)
from orchestrator.records.clock import BLENDED, PLAIN, RECENT, clock_rows, kept_steps, seconds_spent
from orchestrator.records.log import EVALUATING, RESCORING, ROLLOUT, TRAINING, Phase
from orchestrator.records.rundir import METRICS, TIMING, RunReader
from orchestrator.records.slices import missing
from orchestrator.selection import scores as selection
from orchestrator.selection.study import Study

LONGEST = 22  # letters of `UnitStatus.doing`
MOST_DIGITS = 100_000  # responses; more are counted in thousands, so that `doing` stays short
STATES = ("done", "stopped", "running", "failed", "damaged", "interrupted", "queued", "waiting")
ENDED = ("done", "stopped")  # those that have no work left


@dataclass(frozen=True)
class UnitStatus(OfKind):
    """`state` is one of STATES; `score` is the best mean pass@1 so far, in [0, 1], at `best_step`.

    `phase` is the present work of the unit, or the work for which it waits: `training`,
    `evaluating` or `rescoring`, and for a unit that starts a phase of `records.log` before
    these. `doing` describes it to people in at most `LONGEST` letters, for example
    `evaluating 640 left`, which counts responses. `seconds_left` is known for running units alone,
    `seconds_needed` for all units that are not done; both are None while unknown. `latest_score` is
    the score of the latest checkpoint that has one, after `latest_step` steps.
    """

    id: str
    setup: str
    label: str
    kind: Kind
    seed: int
    state: str
    step: int
    steps: int
    loss: float | None = None
    score: float | None = None
    best_step: int | None = None
    seconds_left: float | None = None
    error: str | None = None
    latest_step: int | None = None
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

    @staticmethod
    def of(unit: Unit, state: str, step: int, **known: Any) -> UnitStatus:
        """The status of a unit after `step` steps, with the other fields that are known."""
        return UnitStatus(
            id=unit.id,
            setup=unit.setup,
            label=unit.label,
            kind=unit.kind,
            seed=unit.seed,
            state=state,
            step=step,
            steps=unit.steps,
            method=unit.method,
            **known,
        )

    @property
    def family(self) -> str:
        """The label of its method."""
        return method_label(self.method or BASE)

    @property
    def setting(self) -> str:
        """The knobs in its label; empty without any."""
        return self.label.removeprefix(self.family).strip()

    @property
    def has_ended(self) -> bool:
        """Whether it has no work left."""
        return self.state in ENDED

    @property
    def is_training(self) -> bool:
        """Whether an attempt at the unit runs, and not only evaluators that sample it."""
        return self.state == "running" and self.phase not in (EVALUATING, RESCORING)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class UnitView:
    """A unit at one moment, of which evaluators sample the `claimed` slices.

    `wanted` has the evaluations that lack samples now, with the number of samples of each problem
    that they need. `later` is EVALUATING or RESCORING if the unit may need more samples once its
    family is trained, else None. `seconds` are the costs by which its time left is estimated.
    """

    study: Study
    unit: Unit
    wanted: Mapping[Sampling, int]
    later: str | None
    claimed: Sequence[Held]
    seconds: StudySeconds

    @cached_property
    def run(self) -> RunReader:
        return self.study.reader(self.unit)

    @cached_property
    def state(self) -> str:
        """One of STATES but `damaged`."""
        run, unit = self.run, self.unit
        # A process may hold a unit without work to do: another sweep's attempt that waited for the
        # lease, or an evaluator that samples it for another experiment.
        if self.study.is_stopped(unit) and not self.wanted and not run.running:
            return "stopped"
        if run.trained and not self.wanted and not self.later:
            return "done"
        if run.running or self.claimed:
            return "running"
        if self.error is not None:
            return "failed"
        if run.trained:
            return "waiting" if self.is_rescored else "queued"
        if run.started and run.next_step < unit.steps:
            if self.is_at_rung:
                return "waiting"
            halved = self.study.halved.get(unit.id)
            return "queued" if halved and halved.passed == run.next_step else "interrupted"
        ready = all(self.study.reader(needed).trained for needed in unit.depends_on)
        return "queued" if ready else "waiting"

    @cached_property
    def phase(self) -> str | None:
        """The phase of a running unit, or the phase for which another one waits."""
        if self.state == "running":
            # An attempt notes its phase. Evaluators leave no note, but claims on slices.
            if self.run.running or not self.claimed:
                return self.note.name or None if self.note else None
            fresh = self.study.fresh_evaluation_ids(self.unit.setup).values()
            rescored = self.claimed[0].evaluation_id in fresh and not self.confirms
            return RESCORING if rescored else EVALUATING
        if self.state not in ("queued", "waiting"):
            return None
        if not self.run.trained and not (self.is_at_rung and self.wanted):
            return TRAINING if self.unit.trains else EVALUATING
        if self.wanted:
            return RESCORING if self.is_rescored else EVALUATING
        return self.later

    @property
    def doing(self) -> str:
        """The phase in words."""
        trained = self.run.trained
        if self.state == "running":
            if self.phase in (EVALUATING, RESCORING):
                left = sum(self.lacking.values())
                count = f"{left // 1000}k" if left >= MOST_DIGITS else str(left)
                return f"{self.phase} {count} left" if left else self.phase
            again = f", try {self.note.attempt}" if self.note and self.note.attempt > 1 else ""
            return f"{self.phase or 'starting'}{again}"
        if self.is_at_rung and self.state == "waiting":
            return "waiting at its rung"
        if self.state == "waiting" and not trained:
            return "waiting for its stage"
        if self.state == "waiting":
            return f"waiting for {'rescoring' if self.phase == RESCORING else 'its race'}"
        stepped = trained or (self.run.started and self.run.next_step == self.unit.steps)
        return "queued for evaluation" if self.state == "queued" and stepped else self.state

    @property
    def is_at_rung(self) -> bool:
        """Whether it has trained as far as a halving search lets it by now."""
        halved = self.study.halved.get(self.unit.id)
        at_goal = halved is not None and self.run.next_step >= halved.goal
        return at_goal and not self.run.running and self.run.next_step < self.unit.steps

    @cached_property
    def note(self) -> Phase | None:
        """The note that the process of a running unit left of its work."""
        return self.run.phase() if self.state == "running" else None

    @cached_property
    def error(self) -> str | None:
        """Why the unit failed, or why samples that are wanted of it could not be taken."""
        error = self.run.error
        for sampling in self.wanted:
            error = error or self.run.evaluation_error(self._evaluation_id(sampling), sampling.step)
        return error

    @property
    def confirms(self) -> bool:
        """Whether the unit confirms a choice, so that all its samples are fresh ones."""
        return self.unit.id in self.study.confirming

    @property
    def is_rescored(self) -> bool:
        """Whether all samples that it wants are fresh ones of its family's selected checkpoint."""
        return not self.confirms and all(sampling.repetition == FRESH for sampling in self.wanted)

    @property
    def step(self) -> int:
        """The steps that it has taken; of a running unit also those that are not committed."""
        return self.run.last_metrics()[0] if self.state == "running" else self.run.next_step

    @cached_property
    def lacking(self) -> dict[Sampling, int]:
        """Responses that its checkpoints lack now."""
        evaluation, lacking = self.study.setup_of(self.unit).evaluation, {}
        for sampling, samples in self.wanted.items():
            problems = problems_wanted(evaluation, sampling.benchmark)
            present = self.run.slices(self._evaluation_id(sampling), sampling.step)
            parts = missing(present, problems, samples, [], problems * samples)
            lacking[sampling] = sum(part.responses for part in parts)
        return lacking

    @cached_property
    def left(self) -> Left | None:
        """The time that its remaining work takes; None if it is done, or a cost is unknown."""
        if self.state in ENDED:
            return None
        unit = self.study.as_expected(self.unit)
        work = work_left(
            self.study.experiment, unit, self.run, self.step, self.lacking, self.confirms
        )
        return left_of(self.unit, work, self.seconds)

    @cached_property
    def tokens_a_second(self) -> float | None:
        """The pace at which it samples rollouts now; None unless it is a trial in training."""
        known = self.status.is_training and self.unit.is_trial
        return tokens_a_second(self.run) if known else None

    @cached_property
    def status(self) -> UnitStatus:
        """All that is shown of the unit."""
        run, unit = self.run, self.unit
        _, last = run.last_metrics()
        repetition = FRESH if self.confirms else 0
        ids = list(self.study.evaluation_ids(unit.setup, repetition).values())
        scores = selection.trajectory(run, ids) if unit.has_scores else {}
        best = selection.best_step(run, ids) if scores else None
        latest = max(scores, default=None)
        needed = self.left and (self.left.training + self.left.sampling).mid
        return UnitStatus.of(
            unit,
            self.state,
            self.step,
            loss=last.get("loss") if last else None,
            score=float(scores[best]) if best is not None else None,
            best_step=best,
            latest_step=latest,
            latest_score=float(scores[latest]) if latest is not None else None,
            seconds_left=needed if self.state == "running" else None,
            seconds_needed=needed,
            confirms=self.study.confirming.get(unit.id),
            error=self.error,
            phase=self.phase,
            doing=self.doing,
            attempt=self.note.attempt if self.note else None,
            attempts=self.note.attempts if self.note else None,
            cpus=unit.placement.cpus,
            gpus=unit.placement.gpus,
        )

    def gpu_of(self, holder: Holder) -> str:
        """The GPU that a process last noted beside its work at the unit; empty without a note."""

        def noted() -> list[list[Any]]:
            latest = {row.place[:2]: row.place[2] for row in clock_rows(self.run)}
            return [[*process, gpu] for process, gpu in latest.items()]

        for *process, gpu in self.run.derived(TIMING, "latest GPU of processes", noted):
            if process == [holder.host, holder.pid]:
                return gpu or ""
        return ""

    def _evaluation_id(self, sampling: Sampling) -> str:
        return self.study.evaluation_ids(self.unit.setup, sampling.repetition)[sampling.benchmark]


def tokens_a_second(run: RunReader) -> float | None:
    """Tokens per second of sampling rollouts, over a unit's latest steps; None before its first."""

    def seconds_of_rollouts() -> list[tuple[int, float]]:
        latest = list(kept_steps(run).items())[-RECENT:]
        return [(step, row.parts[ROLLOUT]) for step, row in latest]

    def tokens_of_rollouts() -> list[tuple[int, int]]:
        rows = run.metrics()[-RECENT:]
        return [(row["step"], row["response_tokens"]) for row in rows if "response_tokens" in row]

    seconds = dict(run.derived(TIMING, "seconds of the latest rollouts", seconds_of_rollouts))
    tokens = dict(run.derived(METRICS, "tokens of the latest rollouts", tokens_of_rollouts))
    steps = seconds.keys() & tokens.keys()
    sampling = sum(seconds[step] for step in steps)
    return sum(tokens[step] for step in steps) / sampling if sampling else None


# --- device-hours that were spent, and how long the remaining work takes, as a Range ---


Device = Literal["GPU", "core"]  # whose hours an experiment counts
Workload = Counter[str]  # BLENDED, PLAIN or the key of a benchmark → steps or responses

# --- spent ---


def device_of(study: Study) -> Device:
    """The device whose hours an experiment counts: GPUs, or cores where no unit uses a GPU."""
    shared = study.experiment.runtime.placement
    uses_gpus = shared.gpus or any(unit.placement.gpus for unit in study.units)
    return "GPU" if uses_gpus else "core"


def devices_of(placement: Placement, device: Device) -> float:
    """How many GPUs or cores a process with this placement holds."""
    return float(placement.gpus) if device == "GPU" else placement.cpus


def hours_spent(study: Study) -> float:
    """Device-hours of all work that was clocked in the run directories of a study."""
    device = device_of(study)
    seconds = 0.0
    evaluators = devices_of(study.experiment.runtime.placement.of_evaluator, device)
    for unit in study.units:
        training, evaluating = seconds_spent(study.reader(unit))
        seconds += devices_of(unit.placement, device) * training + evaluators * evaluating
    return seconds / 3600


# --- left ---


@dataclass(frozen=True)
class Left:
    """Seconds left of a unit's training in one process, and of sampling its checkpoints.

    `sampling` is the time of a single evaluator that takes all samples.
    """

    unit: Unit
    training: Range
    sampling: Range


def work_left(
    experiment: Experiment,
    unit: Unit,
    run: RunReader,
    step: int,
    missing: Mapping[Sampling, int],
    confirms: bool = False,
) -> Workload:
    """Steps and responses that a unit still needs; `step` is the one that comes next.

    `missing` counts the responses that its present checkpoints lack. The responses to checkpoints
    to come are added. A unit that `confirms` has a single checkpoint evaluated, in full.
    """
    setup = setup_of(unit, experiment)
    evaluation = setup.evaluation
    work = Counter[str]()
    if not run.trained:
        work[BLENDED], work[PLAIN] = steps_left(unit, step)
        made = run.next_step // setup.training.checkpoint_every
        if run.next_step >= unit.steps:
            made = unit.steps  # more than it can have: no checkpoint is to come
        to_come = max(0, checkpoints_evaluated(unit, setup) - made) if unit.is_trial else 0
        of_each = samples_at_once(evaluation, unit)
        if confirms:
            to_come, of_each = 1, rungs(evaluation)[-1]
        for benchmark, samples in of_each.items():
            work[benchmark] += to_come * samples * problems_wanted(evaluation, benchmark)
    for sampling, responses in missing.items():
        work[sampling.benchmark] += responses
    return +work


def work_once_trained(
    experiment: Experiment, family: Family, scenario: Scenario = "mid"
) -> Workload:
    """Responses that a family gets once it is trained: the later rungs of its race, fresh samples.

    The number that a race takes is an estimate, which `scenario` chooses.
    """
    unit, seeds = family[0][0], len(family[0])
    setup = setup_of(unit, experiment)
    work = Counter[str]()
    candidates = family_size(family, setup)
    for benchmark, responses in evaluation_generations(setup).items():
        at_once = samples_at_once(setup.evaluation, unit)[benchmark]
        of_one = at_once * problems_wanted(setup.evaluation, benchmark)
        if of_one < responses:
            share = expected_share(candidates, setup).at(scenario)
            work[benchmark] += round(max(0.0, share * responses - of_one) * candidates * seeds)
        if setup.evaluation.rescore:
            work[benchmark] += responses * seeds
    return work


def left_of(unit: Unit, work: Workload, seconds: StudySeconds) -> Left | None:
    """The time that a unit's `work` takes; None while the cost of a part of it is unknown."""
    training, sampling = [], []
    for kind, amount in work.items():
        cost = seconds.of(unit, kind)
        if cost is None:
            return None
        (training if kind in (BLENDED, PLAIN) else sampling).append(cost * amount)
    return Left(unit, Range.total(training), Range.total(sampling))


def left_once_trained(experiment: Experiment, family: Family, seconds: StudySeconds) -> Left | None:
    """The time that evaluators sample a family after its last training; None while unknown."""
    unit = family[0][0]
    sampling: dict[Scenario, float] = {}
    for scenario in SCENARIOS:
        left = left_of(unit, work_once_trained(experiment, family, scenario), seconds)
        if left is None:
            return None
        sampling[scenario] = left.sampling.at(scenario)
    return Left(unit, NOTHING, Range(**sampling))


def sweep_seconds(
    jobs: Sequence[Left], evaluator: Placement, capacity: Mapping[str, float]
) -> Range | None:
    """How long the jobs take on CPUs and GPUs that are kept busy; None without CPUs and GPUs.

    A unit trains in one process as soon as the units that it depends on are trained. Everything
    else runs side by side, as far as the `capacity` (CPU, GPU → how many) goes.
    """
    if not any(capacity.values()):
        return None
    work: list[Range] = []
    alone: dict[str, Range] = {}  # unit id → seconds of its own training
    waits_for: dict[str, Sequence[str]] = {}  # unit id → ids of the units that it depends on
    for job in jobs:
        work.append(job.training / _side_by_side(job.unit.placement, capacity))
        work.append(job.sampling / _side_by_side(evaluator, capacity))
        alone[job.unit.id] = alone.get(job.unit.id, NOTHING) + job.training
        waits_for[job.unit.id] = job.unit.depends_on
    chains = []
    for unit_id, training in alone.items():
        # Units that others wait for depend on none themselves.
        before = [alone[needed] for needed in waits_for[unit_id] if needed in alone]
        chains.append(Range.total([training, *before]))
    busy = Range.total(work)
    return Range.of(lambda s: on_the_clock(busy.at(s), [chain.at(s) for chain in chains], room=1))


def device_hours(jobs: Sequence[Left], evaluator: Placement, device: Device) -> Range:
    """GPU-hours or core-hours of the jobs."""
    seconds = []
    for job in jobs:
        seconds.append(job.training * devices_of(job.unit.placement, device))
        seconds.append(job.sampling * devices_of(evaluator, device))
    return Range.total(seconds) / 3600


def _side_by_side(placement: Placement, capacity: Mapping[str, float]) -> float:
    """How many processes with this placement run at once."""
    room = []
    for kind, amount in (("CPU", placement.cpus), ("GPU", placement.gpus)):
        if amount:
            room.append(capacity.get(kind, 0.0) // amount)
    return max(1.0, min(room))
