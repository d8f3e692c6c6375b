"""Evaluates one model in a folder of its own for `trb eval`, with the evaluators of a sweep.

The model stands for the untrained student of a sweep without trials. Its samples are therefore
slices, which any number of processes take one by one; a process that dies loses only the slice it
had begun.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.config import Experiment
from orchestrator.engines.catalog import open_engine
from orchestrator.engines.interface import Job, ModelFolder
from orchestrator.experiment.units import Unit
from orchestrator.liveness.claims import Claims
from orchestrator.records.problem_record import ProblemRecord
from orchestrator.records.writer import forget_evaluation_errors
from orchestrator.selection.pending_slices import PendingSlice, pending_slices
from orchestrator.selection.study import Study
from orchestrator.trial.evaluation_loop import EvaluationLoop
from orchestrator.workers.graded_sampling import GradedSampler

ATTEMPTS = 3  # at a slice whose processes die


@dataclass(frozen=True)
class ModelEvaluation:
    """The samples to take of a model: as of a sweep's unit with this seed, at the checkpoint of
    this step.

    `job` opens the engine on the model; its setup names the benchmarks with the samples of each.
    `folder` keeps the slices. Processes receive it pickled.
    """

    job: Job
    tokenizer: ModelFolder
    data_dir: str | None
    seed: int
    step: int
    folder: Path

    def begin(self) -> None:
        """Make the folder, and clear earlier failures and lost claims so that they are tried again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        Claims(self.folder.parent).forget_lost(self.folder.name)
        forget_evaluation_errors(self._study().reader(self.folder.name))

    def pending(self) -> list[PendingSlice]:
        """The slices that are still missing."""
        return list(pending_slices(self._study().snapshot()))

    def at_work(self) -> bool:
        """Whether some process has begun a slice."""
        return bool(Claims(self.folder.parent).held(self.folder.name))

    def evaluate(self) -> Iterator[PendingSlice]:
        """Sample slices until none is left unclaimed. Raises EvaluationFailed."""
        loop = EvaluationLoop(self._study(), lambda _: self._open(), ATTEMPTS)
        try:
            yield from loop.slices()
        finally:
            loop.close()

    def error(self) -> str | None:
        """Why samples could not be taken in several attempts; None without such a failure."""
        study = self._study()
        run = study.reader(self.folder.name)
        for benchmark, evaluation_id in study.evaluation_ids("model").items():
            reason = run.evaluation_error(evaluation_id, 0)
            if reason is not None:
                return f"{benchmark}: {reason}"
        return None

    def records(self) -> dict[str, list[ProblemRecord]]:
        """Benchmark → a record of each of its problems. All slices must exist."""
        study = self._study()
        run = study.reader(self.folder.name)
        found = {}
        for benchmark, evaluation_id in study.evaluation_ids("model").items():
            records = run.evaluation(evaluation_id, 0)
            assert records is not None, "no slice is pending"
            found[benchmark] = records
        return found

    def _study(self) -> Study:
        job = self.job
        setup = replace(
            job.setup, evaluation=replace(job.setup.evaluation, budget="full", rescore=False)
        )
        experiment = Experiment(
            "eval", {"model": setup}, {}, {}, [self.seed], self.data_dir, job.runtime
        )
        unit = Unit(
            id=self.folder.name,
            kind="base_eval",
            setup="model",
            method=None,
            knobs={},
            seed=self.seed,
            depends_on=(),
            steps=0,
            first_batch=0,
            identity={},
        )
        return Study(experiment, [unit], self.folder.parent)

    def _open(self) -> GradedSampler:
        job = self.job
        sampler = open_engine(job.setup.engine.sampler, job).sampler()
        deadline_s = job.runtime.grader_deadline_s
        return GradedSampler(
            job.setup, self.tokenizer, sampler, self.data_dir, deadline_s, self.step
        )
