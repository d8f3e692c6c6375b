"""The record of a problem counts what was sampled of it, right and wrong responses apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from orchestrator.data.benchmarks import load_benchmark
from orchestrator.engines.interface import Limits, ModelFolder, WeightsRef
from orchestrator.models.embedded import make_tokenizer
from orchestrator.policy.spec import Behavior
from orchestrator.rollouts import Request, Rollouts
from orchestrator.workers.graded_sampling import GradedSampler, Samples
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


def test_right_and_wrong_responses_are_counted_apart(tmp_path: Path) -> None:
    experiment, _ = quickstart()
    setup = experiment.setups["arithmetic"]
    tokenizer = make_tokenizer("bytes")
    tokenizer.save_pretrained(tmp_path)
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
    sampler = Scripted(responses, tokenizer.encode, setup.student.eos)
    worker = GradedSampler(setup, ModelFolder(str(tmp_path)), sampler, None, 5.0)
    (record,) = worker.evaluate(Samples(BENCHMARK, range(1), range(len(responses)), 0, 0))
    lengths = [min(CUT, len(text) + 1) for text in responses]
    assert (record.problem, record.n, record.correct) == (first.id, 6, 3)
    assert (record.no_answer, record.truncated) == (2, 1)
    assert record.answers == {"-1": 1, gold: 2, f"{gold}.0": 1}
    assert record.right_answers == {gold: 2, f"{gold}.0": 1}
    assert record.tokens == sum(lengths)
    assert record.tokens_right == lengths[0] + lengths[1] + lengths[3]
