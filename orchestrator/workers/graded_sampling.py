"""Samples and grades responses in one process, with one student's weights at a time.

Evaluators (`trial.evaluation_loop`) and `trb eval` use it.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from orchestrator.config import Setup
from orchestrator.data.benchmarks import load_benchmark
from orchestrator.data.problems import Problem
from orchestrator.data.prompts import graded_text, prompt_text, render, response_text
from orchestrator.engines.common.causal import open_tokenizer
from orchestrator.engines.interface import Limits, ModelFolder, Sampler, WeightsRef
from orchestrator.experiment.evaluation_protocol import keeps_text
from orchestrator.grading.gold import Gold
from orchestrator.grading.grader import Grade, shared_grader
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.policy.spec import Student, Tempered
from orchestrator.records.slices import ProblemRecord, ResponseText, length_histogram
from orchestrator.rollouts import Request, Rollouts
from orchestrator.workers.canary import check_numbers, check_tensors, sequences_of


class Samples(NamedTuple):
    """The samples to take: a range of problems by a range of sample numbers, in one repetition.

    `seed` is the training run's, `step` the checkpoint's: other runs get other samples.
    """

    benchmark: str
    problems: range
    samples: range
    seed: int
    step: int
    repetition: int = 0


class GradedSamples(NamedTuple):
    """A record of each wanted problem, and the responses whose texts are kept, by problem and
    sample.
    """

    records: list[ProblemRecord]
    texts: list[ResponseText]


@dataclass
class _Responses:
    """The grades and lengths of the responses to one problem so far, and the texts to keep."""

    truncated: int = 0
    lengths: list[int] = field(default_factory=list)
    grades: list[Grade] = field(default_factory=list)
    texts: list[ResponseText] = field(default_factory=list)


class GradedSampler:
    """Samples and grades responses of a student, in its initial or last loaded weights.

    `sampled_as` replaces the step of all wanted samples, for a model that no sweep trained.
    """

    def __init__(
        self,
        setup: Setup,
        tokenizer: ModelFolder,
        sampler: Sampler,
        data_dir: str | None,
        grader_deadline_s: float,
        sampled_as: int | None = None,
    ):
        self._setup, self._data_dir, self._sampled_as = setup, data_dir, sampled_as
        self._sampler, self._tokenizer_folder = sampler, tokenizer
        self._grader = shared_grader(grader_deadline_s)
        self._benchmarks: dict[str, list[tuple[Problem, tuple[int, ...]]]] = {}

    @functools.cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        return open_tokenizer(self._tokenizer_folder)

    def start(self) -> None:
        """Load the student and its tokenizer."""
        self._sampler.start(teacher=False)
        _ = self._tokenizer

    def load(self, weights: WeightsRef, canary: dict[str, Any] | None) -> None:
        """Sample from these weights from now on. Raises WrongWeights if `canary` does not match."""
        self._sampler.load(weights)
        if canary is not None:
            check_tensors(canary, self._sampler.digests())
            read = self._sampler.log_probs_each(sequences_of(canary))
            check_numbers(canary, read, self._setup.engine.dtype)

    def evaluate(self, wanted: Samples) -> GradedSamples:
        """Sample and grade responses. Grading runs while other responses are being sampled."""
        evaluation = self._setup.evaluation
        posed = self._posed(wanted.benchmark)
        step = wanted.step if self._sampled_as is None else self._sampled_as
        requests = []
        for index in wanted.problems:
            for sample in wanted.samples:
                key = SequenceKey(
                    Purpose.EVALUATION,
                    wanted.seed,
                    step,
                    index,
                    sample,
                    repetition=evaluation.seed + wanted.repetition,
                )
                requests.append(Request(posed[index][1], key))
        behavior = Student() if evaluation.temperature == 1 else Tempered(evaluation.temperature)
        responses: dict[int, _Responses] = defaultdict(_Responses)
        with ThreadPoolExecutor(1, thread_name_prefix="grading") as grading:
            graded = [
                grading.submit(self._grade, wanted, part, responses)
                for part in self._sampler.sample(
                    requests, behavior, Limits(evaluation.max_response_tokens)
                )
            ]
            for each in graded:
                each.result()
        records, texts = [], []
        for index in wanted.problems:
            records.append(_record(posed[index][0], responses[index]))
            texts += sorted(responses[index].texts, key=lambda text: text.sample)
        return GradedSamples(records, texts)

    def _grade(self, wanted: Samples, rollouts: Rollouts, responses: dict[int, _Responses]) -> None:
        """Add some responses to those of their problems."""
        posed, eos = self._posed(wanted.benchmark), self._setup.student.closing_id
        texts: list[str] = []
        answers: list[tuple[Gold | str, str]] = []
        for row, request in enumerate(rollouts.requests):
            gold = posed[request.key.prompt][0].gold
            assert gold is not None
            texts.append(response_text(rollouts.response(row), eos, self._tokenizer))
            answers.append((gold, graded_text(request.prompt_ids, texts[row], self._tokenizer)))
        grades = self._grader.grade_many(answers)
        lengths, truncated = rollouts.lengths_B.tolist(), rollouts.truncated_B.tolist()
        for row, (request, grade) in enumerate(zip(rollouts.requests, grades, strict=True)):
            of_problem = responses[request.key.prompt]
            of_problem.grades.append(grade)
            of_problem.lengths.append(lengths[row])
            of_problem.truncated += truncated[row]
            if keeps_text(self._setup.evaluation, wanted.repetition, request.key.sample):
                gold = posed[request.key.prompt][0].gold
                assert gold is not None
                of_problem.texts.append(
                    ResponseText(
                        problem=posed[request.key.prompt][0].id,
                        sample=request.key.sample,
                        prompt=prompt_text(request.prompt_ids, self._tokenizer),
                        gold=gold.answer,
                        text=texts[row],
                        answer=grade.extracted,
                        right=grade.correct,
                        truncated=truncated[row],
                        timed_out=grade.timed_out,
                        tokens=lengths[row],
                    )
                )

    def _posed(self, benchmark: str) -> list[tuple[Problem, tuple[int, ...]]]:
        """The problems of a benchmark with their rendered prompts."""
        if benchmark not in self._benchmarks:
            run, template = self._setup.evaluation.benchmarks[benchmark], self._setup.prompt
            problems = load_benchmark(benchmark, self._data_dir, run)[: run.limit]
            self._benchmarks[benchmark] = [
                (each, render(each.text, template, self._tokenizer)) for each in problems
            ]
        return self._benchmarks[benchmark]

    def close(self) -> None:
        """Release the sampler's memory."""
        self._sampler.release()


def _record(problem: Problem, responses: _Responses) -> ProblemRecord:
    answers: Counter[str] = Counter()
    right_answers: Counter[str] = Counter()
    tokens_right = no_answer = timed_out = 0
    for grade, length in zip(responses.grades, responses.lengths, strict=True):
        timed_out += grade.timed_out
        if grade.extracted is None:
            no_answer += 1
            continue
        answers[grade.extracted] += 1
        if grade.correct:
            right_answers[grade.extracted] += 1
            tokens_right += length
    return ProblemRecord(
        problem=problem.id,
        n=len(responses.grades),
        correct=right_answers.total(),
        truncated=responses.truncated,
        no_answer=no_answer,
        timed_out=timed_out,
        tokens=sum(responses.lengths),
        answers=dict(sorted(answers.items())),
        lengths=length_histogram(responses.lengths),
        right_answers=dict(sorted(right_answers.items())),
        tokens_right=tokens_right,
    )
