"""The role that measures pass@1 of a checkpoint: n samples for each problem, graded, as counts."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from orchestrator.config import Setup
from orchestrator.data.benchmarks import load_benchmark
from orchestrator.data.problems import Problem
from orchestrator.data.prompts import render, response_text
from orchestrator.engines.interface import Limits, ModelFolder, Sampler, WeightsRef
from orchestrator.grading.grader import Grader
from orchestrator.models.tokenizer import open_tokenizer
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.policy.spec import Student, Tempered
from orchestrator.records.log import note_progress
from orchestrator.records.problem_record import ProblemRecord, length_histogram
from orchestrator.rollouts import Request, Rollouts, concatenate
from orchestrator.workers.spec import WorkerSpec


class EvaluatorWorker:
    """Evaluates a student in the weights it is told, or else in those its sampler holds.

    `seed` is that of the training run: runs of other seeds are evaluated on other samples.
    """

    def __init__(
        self,
        setup: Setup,
        tokenizer: ModelFolder,
        sampler: Sampler,
        data_dir: str | None,
        seed: int,
        grader_deadline_s: float,
    ):
        self._setup, self._data_dir, self._seed = setup, data_dir, seed
        self._sampler, self._tokenizer_folder = sampler, tokenizer
        self._grader = Grader(deadline_s=grader_deadline_s)

    @staticmethod
    def of_unit(spec: WorkerSpec, sampler: Sampler) -> EvaluatorWorker:
        """The evaluator of a unit's checkpoints."""
        deadline_s = spec.runtime.grader_deadline_s
        return EvaluatorWorker(spec.setup, spec.teacher, sampler, spec.data_dir, spec.unit.seed, deadline_s)

    @functools.cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        return open_tokenizer(self._tokenizer_folder)

    def start(self) -> None:
        """Load the student and its tokenizer."""
        self._sampler.start(teacher=False)
        _ = self._tokenizer

    def evaluate(
        self,
        weights: WeightsRef | None,
        benchmark: str,
        samples: range,
        step: int,
        draw: int = 0,
        notes: Path | None = None,
    ) -> list[ProblemRecord]:
        """Records of those samples of every problem; without `weights`, of the model the sampler started with.

        Another `draw` has other samples, independent of these. How far it is goes to the unit's folder `notes`.
        """
        if weights is not None:
            self._sampler.load(weights)
        evaluation = self._setup.evaluation
        run = evaluation.benchmarks[benchmark]
        problems = load_benchmark(benchmark, self._data_dir, run)[: run.limit]
        requests = []
        for index, problem in enumerate(problems):
            ids = render(problem.text, self._setup.prompt, self._tokenizer)
            for sample in samples:
                key = SequenceKey(Purpose.EVALUATION, self._seed, step, index, sample, draw=evaluation.seed + draw)
                requests.append(Request(ids, key))
        behavior = Student() if evaluation.temperature == 1 else Tempered(evaluation.temperature)
        parts, done = [], 0
        for part in self._sampler.sample(requests, behavior, Limits(evaluation.max_response_tokens)):
            parts.append(part)
            done += len(part.requests)
            if notes is not None:
                note_progress(notes, done)
        return self._records(problems, len(samples), concatenate(parts))

    def _records(self, problems: list[Problem], n: int, rollouts: Rollouts) -> list[ProblemRecord]:
        eos = self._setup.student.eos
        return [
            self._record(problem, range(index * n, (index + 1) * n), rollouts, eos)
            for index, problem in enumerate(problems)
        ]

    def _record(self, problem: Problem, rows: range, rollouts: Rollouts, eos: int) -> ProblemRecord:
        assert problem.gold is not None
        gold = problem.gold
        texts = [response_text(rollouts.response(row), eos, self._tokenizer) for row in rows]
        grades = self._grader.grade_many([(gold, text) for text in texts])
        answers = Counter(grade.extracted for grade in grades if grade.extracted is not None)
        lengths = rollouts.lengths_B[rows.start : rows.stop].tolist()
        return ProblemRecord(
            problem=problem.id,
            n=len(rows),
            correct=sum(grade.correct for grade in grades),
            truncated=int(rollouts.truncated_B[rows.start : rows.stop].sum()),
            no_answer=sum(grade.extracted is None for grade in grades),
            timed_out=sum(grade.timed_out for grade in grades),
            tokens=sum(lengths),
            answers=dict(sorted(answers.items())),
            lengths=length_histogram(lengths),
        )

    def close(self) -> None:
        """End the grader's process."""
        self._grader.close()
