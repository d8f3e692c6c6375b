"""The loop of an evaluator: samples slices of wanted checkpoints, one by one, on one sampler.

Evaluators need no dispatcher. Each one reads the wanted slices from the run directories, claims a
slice and writes its records. Any number of evaluators may run, on any machines that see the folder,
and each may die at any moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.engines.catalog import open_engine
from orchestrator.engines.device import hide_gpus
from orchestrator.engines.interface import Job, ModelFolder, WeightsRef
from orchestrator.errors import NotFinite
from orchestrator.experiment import evaluation_protocol
from orchestrator.experiment.evaluation_protocol import (
    Sampling,
    evaluation_ids,
    full_samples,
    problems_wanted,
)
from orchestrator.liveness import heartbeat
from orchestrator.liveness.leases import Claims, Lease
from orchestrator.liveness.processes import described, place
from orchestrator.records.log import EVALUATE, EVALUATING, EVALUATOR, RESCORING, START, RunLog
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import ProblemRecord, missing
from orchestrator.records.writer import (
    append_timing,
    forget_evaluation_errors,
    note_evaluation_error,
    write_slice,
)
from orchestrator.selection.pending_slices import PendingSlice, pending_slices, preference
from orchestrator.selection.scores import mean_score
from orchestrator.selection.study import Study
from orchestrator.workers.graded_sampling import GradedSampler, Samples
from orchestrator.workers.spec import Pairs

REFRESH_FACTOR = 20  # wanted slices are read again after this many times the duration of a read


class EvaluationFailed(Exception):
    """A slice could not be sampled, for the reason in `__cause__`.

    The `claim` is still held; the handler that gives the slice up releases it. A process that ends
    without a release leaves the claim to the next process, which then knows how often the slice was
    begun.
    """

    def __init__(self, wanted: PendingSlice, claim: Lease):
        super().__init__(
            f"{wanted.unit_id}: step {wanted.sampling.step} of {wanted.sampling.benchmark}"
        )
        self.wanted = wanted
        self.claim = claim


class EvaluationLoop:
    """Works off the `pending` slices of a runs folder; holds the models of one setup at a time.

    `open_worker(setup)` opens the sampler of a setup, with the untrained student's weights. After
    `attempts` processes died on a slice it is given up, and its checkpoint gets an error.
    """

    def __init__(
        self,
        runs: Path,
        pending: Callable[[], Iterable[PendingSlice]],
        open_worker: Callable[[str], GradedSampler],
        attempts: int,
    ):
        self._runs = runs
        self._pending = pending
        self._open_worker = open_worker
        self._attempts = attempts
        self._claims = Claims(runs)
        self._worker: GradedSampler | None = None
        self._setup: str | None = None  # the setup of the worker's models
        # The worker's weights: run directory and step, or setup and None before any were loaded.
        self._loaded: tuple[str, int | None] | None = None
        self._verified: set[tuple[str, int]] = set()
        self._wanted: list[PendingSlice] = []
        self._read_until = 0.0

    def slices(self) -> Iterator[PendingSlice]:
        """Sample slices until none is left unclaimed. Raises EvaluationFailed."""
        while (chosen := self._choose()) is not None:
            wanted, claim = chosen
            try:
                self.sample(wanted)
            except Exception as error:
                raise EvaluationFailed(wanted, claim) from error
            claim.release(remove=True)
            yield wanted

    def close(self) -> None:
        """Release the models and the grader."""
        if self._worker is not None:
            self._worker.close()
        self._worker = self._setup = self._loaded = None

    # --- which slice comes next ---

    def _choose(self) -> tuple[PendingSlice, Lease] | None:
        """Claim the slice that `preference` puts first; None if no slice is left unclaimed."""

        def rank(wanted: PendingSlice) -> tuple[bool, bool, bool]:
            return preference(wanted, self._loaded, self._setup)

        fresh = self._refresh()
        while True:
            for wanted in sorted(self._wanted, key=rank):
                self._wanted.remove(wanted)
                claim = self._claim(wanted)
                if claim is not None:
                    return wanted, claim
            # The list of an earlier read may lack slices that became wanted since: only a new read
            # tells that nothing is left.
            if fresh:
                return None
            self._read_until = 0.0
            fresh = self._refresh()

    def _refresh(self) -> bool:
        """Read the wanted slices, unless they were read lately; return whether they were read now."""
        begun = time.monotonic()
        if begun < self._read_until:
            return False
        self._wanted = list(self._pending())
        now = time.monotonic()
        self._read_until = now + REFRESH_FACTOR * (now - begun)
        return True

    def _claim(self, wanted: PendingSlice) -> Lease | None:
        """Claim a slice; None if another evaluator holds it, or has just finished it."""
        run = RunReader(self._runs, wanted.unit_id)
        step = wanted.sampling.step
        claim = self._claims.take(run.unit_id, wanted.evaluation_id, step, wanted.part.name)
        if claim is None:
            return None
        if claim.attempt > self._attempts:
            note_evaluation_error(
                run,
                wanted.evaluation_id,
                step,
                f"lost: its process died in each of {self._attempts} attempts",
            )
        # Looked at only under the claim: another evaluator may have finished since the last read.
        elif not (run.evaluation_path(wanted.evaluation_id, step) / wanted.part.name).exists():
            return claim
        claim.release(remove=True)
        return None

    # --- sampling it ---

    def sample(self, wanted: PendingSlice) -> None:
        """Sample and grade a slice and write it, unless another evaluator was first."""
        run = RunReader(self._runs, wanted.unit_id)
        benchmark, step, repetition = wanted.sampling
        name = RESCORING if repetition == evaluation_protocol.FRESH else EVALUATING
        begun = time.monotonic()
        loaded = self._loaded
        worker = self._worker_with(wanted, run)
        started = time.monotonic()
        part = wanted.part
        if self._loaded != loaded:
            row = {
                "step": step,
                "phase": START,
                "role": EVALUATOR,
                "seconds": round(started - begun, 3),
            }
            append_timing(run, row | place())
        problems = range(part.problem, part.problem_end)
        samples = range(part.sample, part.sample_end)
        try:
            graded = worker.evaluate(
                Samples(benchmark, problems, samples, wanted.seed, step, repetition)
            )
        except NotFinite as error:
            raise NotFinite(f"evaluating the checkpoint of step {step}: {error}") from error
        write_slice(run, wanted.evaluation_id, step, part, graded.records, graded.texts)
        seconds = round(time.monotonic() - started, 3)
        row = {
            "step": step,
            "phase": EVALUATE,
            "benchmark": benchmark,
            "draw": repetition,
            "responses": part.responses,
            "tokens": sum(record.tokens for record in graded.records),
        }
        append_timing(run, row | {"seconds": seconds} | place())
        log = RunLog(run.path)
        log.line(
            f"{name} step {step}: {part.responses} responses of {benchmark} in {seconds:.1f} s, "
            f"{described(place())}"
        )
        ids = wanted.score_ids
        if ids and not any(each.checkpoint == wanted.checkpoint for each in self._wanted):
            score = mean_score(run, list(ids), step)
            if score is not None:
                log.line(f"step {step}: pass@1 {100 * score:.1f} % over {len(ids)} benchmarks")

    def _worker_with(self, wanted: PendingSlice, run: RunReader) -> GradedSampler:
        """The worker of the slice's setup, with the weights of its checkpoint."""
        at_first = (wanted.setup, None)
        # A sampler cannot go back from loaded weights to the untrained student's: it is reopened.
        has_other_weights = wanted.untrained and self._loaded != at_first
        if self._worker is None or self._setup != wanted.setup or has_other_weights:
            self.close()
            with heartbeat.loading():
                self._worker = self._open_worker(wanted.setup)
                self._worker.start()
            self._setup = wanted.setup
            self._loaded = at_first
        if not wanted.untrained and self._loaded != wanted.checkpoint:
            step = wanted.sampling.step
            if wanted.checkpoint not in self._verified:
                run.verify_checkpoint(step)
                self._verified.add(wanted.checkpoint)
            self._loaded = None  # in case loading fails halfway
            self._worker.load(WeightsRef(step, run.checkpoint_path(step)), run.canary(step))
            self._loaded = wanted.checkpoint
        return self._worker


def study_evaluator(study: Study, pairs: Pairs, attempts: int) -> EvaluationLoop:
    """The loop over the slices that a study wants, with engines in this process."""
    if not study.experiment.runtime.placement.gpus:
        hide_gpus()

    def open_worker(name: str) -> GradedSampler:
        experiment = study.experiment
        setup = experiment.setups[name]
        student, teacher = pairs[name]
        job = Job(setup, experiment.runtime, student, trains=False)
        sampler = open_engine(setup.engine.sampler, job).sampler()
        deadline_s = experiment.runtime.grader_deadline_s
        return GradedSampler(setup, teacher, sampler, experiment.data_dir, deadline_s)

    def pending() -> Iterator[PendingSlice]:
        return pending_slices(study.snapshot())

    return EvaluationLoop(study.runs, pending, open_worker, attempts)


# --- evaluates one model in a folder of its own for `trb eval`, with the evaluators of a sweep ---
#
# The model's samples are slices, which any number of processes take one by one. A process that dies
# loses only the slice it had begun.


ATTEMPTS = 3  # at a slice whose processes die
STEP = 0  # the step under which the folder keeps the model; its samples may be of another step


@dataclass(frozen=True)
class ModelEvaluation:
    """The samples to take of a model, equal to those of a unit with this `seed` at this `step`.

    `job` opens the engine on the model; its setup names the benchmarks with the samples of each.
    `folder` keeps the slices. Processes receive it pickled.
    """

    job: Job
    tokenizer: ModelFolder
    data_dir: str | None
    seed: int
    step: int
    folder: Path

    @property
    def _run(self) -> RunReader:
        """The folder, which is laid out as a run directory."""
        return RunReader(self.folder.parent, self.folder.name)

    def begin(self) -> None:
        """Make the folder, and clear earlier failures and lost claims for another attempt."""
        self.folder.mkdir(parents=True, exist_ok=True)
        Claims(self.folder.parent).forget_lost(self.folder.name)
        forget_evaluation_errors(self._run)

    def pending(self) -> list[PendingSlice]:
        """The slices that are still missing, without those of benchmarks that failed."""
        ids = evaluation_ids(self.job.setup)
        evaluation = self.job.setup.evaluation
        pending: list[PendingSlice] = []
        for benchmark, evaluation_id in ids.items():
            if self._run.evaluation_error(evaluation_id, STEP) is not None:
                continue
            for part in missing(
                self._run.slices(evaluation_id, STEP),
                problems_wanted(evaluation, benchmark),
                full_samples(evaluation, benchmark),
                cuts=(),
                most=self.job.runtime.slice_responses,
            ):
                pending.append(
                    PendingSlice(
                        unit_id=self.folder.name,
                        setup="model",
                        seed=self.seed,
                        untrained=True,
                        sampling=Sampling(benchmark, STEP, repetition=0),
                        evaluation_id=evaluation_id,
                        part=part,
                        decides=False,
                        score_ids=tuple(ids.values()),
                    )
                )
        return pending

    def at_work(self) -> bool:
        """Whether some process has begun a slice."""
        return bool(Claims(self.folder.parent).held(self.folder.name))

    def evaluate(self) -> Iterator[PendingSlice]:
        """Sample slices until none is left unclaimed. Raises EvaluationFailed."""
        loop = EvaluationLoop(self.folder.parent, self.pending, lambda _: self._open(), ATTEMPTS)
        try:
            yield from loop.slices()
        finally:
            loop.close()

    def error(self) -> str | None:
        """Why samples could not be taken in several attempts; None without such a failure."""
        for benchmark, evaluation_id in evaluation_ids(self.job.setup).items():
            reason = self._run.evaluation_error(evaluation_id, STEP)
            if reason is not None:
                return f"{benchmark}: {reason}"
        return None

    def records(self) -> dict[str, list[ProblemRecord]]:
        """Benchmark → a record of each of its problems. All slices must exist."""
        by_benchmark = {}
        for benchmark, evaluation_id in evaluation_ids(self.job.setup).items():
            records = self._run.evaluation(evaluation_id, STEP)
            assert records is not None, "no slice is pending"
            by_benchmark[benchmark] = records
        return by_benchmark

    def _open(self) -> GradedSampler:
        job = self.job
        sampler = open_engine(job.setup.engine.sampler, job).sampler()
        deadline_s = job.runtime.grader_deadline_s
        return GradedSampler(
            job.setup, self.tokenizer, sampler, self.data_dir, deadline_s, self.step
        )
