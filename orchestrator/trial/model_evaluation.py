"""Evaluates one model in a folder of its own for `trb eval`, with the evaluators of a sweep.

The model's samples are slices, which any number of processes take one by one. A process that dies
loses only the slice it had begun.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.engines.catalog import open_engine
from orchestrator.engines.interface import Job, ModelFolder
from orchestrator.experiment.evaluation_protocol import (
    Sampling,
    evaluation_ids,
    full_samples,
    problems_wanted,
)
from orchestrator.liveness.claims import Claims
from orchestrator.records.problem_record import ProblemRecord
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import missing
from orchestrator.records.writer import forget_evaluation_errors
from orchestrator.selection.pending_slices import PendingSlice
from orchestrator.trial.evaluation_loop import EvaluationLoop
from orchestrator.workers.graded_sampling import GradedSampler

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
