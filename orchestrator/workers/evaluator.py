"""The role that measures pass@1 of a checkpoint: n samples for each problem, graded, as counts."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase

from orchestrator.data.benchmarks import load_benchmark
from orchestrator.data.problem import Problem
from orchestrator.data.prompts import render, response_text
from orchestrator.engines.torch.decoding import Decoding
from orchestrator.grading.grader import Grader
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.policy.spec import Student, Tempered
from orchestrator.records.log import note_progress
from orchestrator.records.problem_record import ProblemRecord, length_histogram
from orchestrator.rollouts import Request, Rollouts
from orchestrator.workers.generation import in_batches
from orchestrator.workers.store import ModelStore, open_tokenizer


class EvaluatorWorker:
    """Evaluates checkpoints; a call is pure in (checkpoint, benchmark, samples, step, draw)."""

    def __init__(self, store: ModelStore):
        self._store = store
        self._grader = Grader(deadline_s=store.spec.runtime.grader_deadline_s)

    @functools.cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        return open_tokenizer(self._store.spec)

    def start(self) -> None:
        """Load the student and its tokenizer."""
        _ = self._store.student, self._tokenizer

    def evaluate(
        self,
        checkpoint: str | None,
        benchmark: str,
        first: int,
        last: int,
        step: int,
        draw: int = 0,
        notes: str | None = None,
    ) -> list[ProblemRecord]:
        """Records of samples first … last−1 of every problem; `checkpoint` None is the initial model.

        Another `draw` has other samples, independent of these. How far it is goes to the unit's folder `notes`.
        """
        if checkpoint is not None:
            self._store.load_student(load_file(Path(checkpoint) / "model.safetensors"))
        spec = self._store.spec
        run = spec.setup.evaluation.benchmarks[benchmark]
        assert run is not None
        problems = load_benchmark(benchmark, spec.data_dir, run)[: run.limit]
        evaluation = spec.setup.evaluation
        requests = []
        for index, problem in enumerate(problems):
            ids = render(problem.text, spec.setup.prompt, self._tokenizer)
            for sample in range(first, last):
                key = SequenceKey(Purpose.EVALUATION, spec.unit.seed, step, index, sample, draw=evaluation.seed + draw)
                requests.append(Request(ids, key))
        behavior = Student() if evaluation.temperature == 1 else Tempered(evaluation.temperature)
        decoding = Decoding(evaluation.max_response_tokens)
        report = functools.partial(note_progress, Path(notes)) if notes is not None else None
        rollouts = in_batches(self._store, self._store.student, None, requests, behavior, decoding, report)
        return self._records(problems, last - first, rollouts)

    def _records(self, problems: list[Problem], n: int, rollouts: Rollouts) -> list[ProblemRecord]:
        eos = self._store.spec.setup.student.eos
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
