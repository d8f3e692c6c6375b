"""The record of a problem counts what was sampled of it, right and wrong responses apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.data.benchmarks import load_benchmark
from orchestrator.engines.interface import Limits, ModelFolder, WeightsRef
from orchestrator.experiment.evaluation_protocol import FRESH
from orchestrator.models.recipes import make_tokenizer
from orchestrator.policy.spec import Behavior
from orchestrator.rollouts import Request, Rollouts
from orchestrator.workers.graded_sampling import GradedSampler, GradedSamples, Samples
from tests.fake_runs import quickstart

BENCHMARK = "arithmetic_short"
CUT = 20  # tokens of a response that is cut off


class Scripted:
    """A sampler whose responses to every problem are written down, one for each sample number."""

    def __init__(self, responses: list[str], encode: Any, eos: int):
        self.responses, self.encode, self.eos = responses, encode, eos

    def start(self, teacher: bool) -> None:
        pass

    def load(self, weights: WeightsRef) -> None:
        pass

    def log_probs(self, ids: Sequence[int]) -> list[float]:
        raise NotImplementedError

    def log_probs_each(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        raise NotImplementedError

    def digests(self) -> dict[str, str]:
        raise NotImplementedError

    def sample(
        self, requests: Sequence[Request], behavior: Behavior, limits: Limits
    ) -> Iterator[Rollouts]:
        # One call of the grader for each response, the last sample first: any order counts alike.
        for request in reversed(requests):
            ids = [*self.encode(self.responses[request.key.sample]), self.eos][:CUT]
            zeros = torch.zeros(1, len(ids))
            truncated = torch.tensor([ids[-1] != self.eos])
            lengths, tokens = torch.tensor([len(ids)]), torch.tensor([ids])
            yield Rollouts(
                [request], tokens, lengths, truncated, zeros, zeros, torch.zeros(1, len(ids), 1)
            )

    def release(self) -> None:
        pass


def graded(folder: Path, wanted: Samples, **evaluation: Any) -> tuple[GradedSamples, list[str]]:
    """What comes of scripted responses to `wanted` problems, and those responses."""
    experiment, _ = quickstart()
    setup = experiment.setups["arithmetic"]
    setup = replace(setup, evaluation=replace(setup.evaluation, **evaluation))
    tokenizer = make_tokenizer("bytes")
    tokenizer.save_pretrained(folder)
    first = load_benchmark(BENCHMARK, None)[0]
    assert first.gold is not None
    gold = first.gold.answer
    responses = [
        rf"\boxed{{{gold}}}",
        rf"\boxed{{{gold}.0}}",
        r"\boxed{-1}",
        rf"\boxed{{{gold}}}",
        "no box in all of this text",
        "0",
    ]
    sampler = Scripted(responses, tokenizer.encode, setup.student.closing_id)
    worker = GradedSampler(setup, ModelFolder(str(folder)), sampler, None, 5.0)
    return worker.evaluate(wanted), responses


def test_right_and_wrong_responses_are_counted_apart(tmp_path: Path) -> None:
    ((record,), _), responses = graded(tmp_path, Samples(BENCHMARK, range(1), range(6), 0, 0))
    first = load_benchmark(BENCHMARK, None)[0]
    assert first.gold is not None
    gold = first.gold.answer
    lengths = [min(CUT, len(text) + 1) for text in responses]
    assert (record.problem, record.n, record.correct) == (first.id, 6, 3)
    assert (record.no_answer, record.truncated) == (2, 1)
    assert record.answers == {"-1": 1, gold: 2, f"{gold}.0": 1}
    assert record.right_answers == {gold: 2, f"{gold}.0": 1}
    assert record.tokens == sum(lengths)
    assert record.tokens_right == lengths[0] + lengths[1] + lengths[3]


def test_a_kept_text_has_prompt_answer_and_grade(tmp_path: Path) -> None:
    wanted = Samples(BENCHMARK, range(2), range(6), 0, 0)
    (_, texts), responses = graded(tmp_path, wanted, keep_texts=6)
    problems = load_benchmark(BENCHMARK, None)[:2]
    assert [(text.problem, text.sample) for text in texts] == [
        (problem.id, sample) for problem in problems for sample in range(6)
    ]
    gold = problems[0].gold
    assert gold is not None
    for text, response in zip(texts[:6], responses, strict=True):
        assert (text.prompt, text.gold) == (f"{problems[0].text}\n", gold.answer)
        assert text.text == response[:CUT]
        assert text.tokens == min(CUT, len(response) + 1)
        assert text.truncated == (len(response) + 1 > CUT)
    assert [text.right for text in texts[:6]] == [True, True, False, True, False, False]
    answers = [gold.answer, f"{gold.answer}.0", "-1", gold.answer, None, None]
    assert [text.answer for text in texts[:6]] == answers


@pytest.mark.parametrize(
    ("keep", "repetition", "kept"),
    [
        (0, 0, []),
        (1, 0, []),
        (3, 0, [2]),
        (9, 0, [2, 3, 4, 5]),
        (0, FRESH, []),
        (1, FRESH, [2, 3, 4, 5]),
    ],
)
def test_the_first_samples_keep_their_texts_and_fresh_ones_all(
    keep: int, repetition: int, kept: list[int], tmp_path: Path
) -> None:
    wanted = Samples(BENCHMARK, range(3), range(2, 6), 0, 0, repetition)
    (records, texts), _ = graded(tmp_path, wanted, keep_texts=keep)
    assert [record.n for record in records] == [4, 4, 4]
    assert [text.sample for text in texts] == kept * 3
