"""The row of held_out.jsonl against an enumeration of the whole vocabulary in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from orchestrator.engines.common.scoring import score
from orchestrator.engines.torch.decoding import Decoding, generate
from orchestrator.policy.spec import Student
from orchestrator.records.log import HeldOut
from orchestrator.rollouts import Rollouts
from orchestrator.workers.digests import digest_held_out
from tests import tiny
from tests.policy import reference
from tests.policy.reference import Array

ENOUGH = 10_000
STEP = 3


def rolled_out(top_k: int, samples: int = 2, longest: int = 40) -> Rollouts:
    requests = tiny.requests(samples, seed=3)
    return generate(tiny.student(), None, requests, Student(), Decoding(longest, top_k))


def measured(rollouts: Rollouts) -> HeldOut:
    student = score(tiny.student(), rollouts, ENOUGH)
    return digest_held_out(rollouts, student, score(tiny.teacher(), rollouts, ENOUGH), STEP)


def with_rest(log_prob: Array, support: NDArray[np.int64]) -> Array:
    """The ids of the support, and all others as one outcome."""
    others = np.setdiff1d(np.arange(len(log_prob)), support)
    rest = np.exp(log_prob[others]).sum()
    with np.errstate(divide="ignore"):
        return np.append(log_prob[support], np.log(rest))


def enumerated(rollouts: Rollouts) -> tuple[list[Array], list[Array], list[Array], list[Array]]:
    """Of each response KL with the rest as one outcome, KL, and both tails, (T,) each."""
    coarse, whole, tail_p, tail_q = ([] for _ in range(4))
    rows_p = tiny.visited_rows(tiny.student(torch.float64), rollouts)
    rows_q = tiny.visited_rows(tiny.teacher(torch.float64), rollouts)
    for row, (of_p, of_q) in enumerate(zip(rows_p, rows_q, strict=True)):
        found: list[list[float]] = [[], [], [], []]
        for t, (log_p, log_q) in enumerate(zip(of_p, of_q, strict=True)):
            support = rollouts.support_ids_BTK[row, t].numpy()
            p, q = with_rest(log_p, support), with_rest(log_q, support)
            values = (reference.kl(p, q), reference.kl(log_p, log_q), np.exp(p[-1]), np.exp(q[-1]))
            for place, value in zip(found, values, strict=True):
                place.append(float(value))
        for all_rows, of_row in zip((coarse, whole, tail_p, tail_q), found, strict=True):
            all_rows.append(np.array(of_row))
    return coarse, whole, tail_p, tail_q


def token_mean(rows: list[Array]) -> float:
    return float(np.concatenate(rows).mean())


def test_ids_outside_of_the_support_are_one_outcome() -> None:
    rollouts = rolled_out(top_k=4)
    row = measured(rollouts)
    coarse, whole, tail_p, tail_q = enumerated(rollouts)
    assert row.step == STEP
    assert row.kl == pytest.approx(token_mean(coarse), rel=1e-5)
    assert row.kl is not None
    assert row.kl < token_mean(whole), "a lower bound of the KL of all ids"
    assert row.tail_student == pytest.approx(token_mean(tail_p), rel=1e-5)
    assert row.tail_teacher == pytest.approx(token_mean(tail_q), rel=1e-5)
    assert row.prompt_kl == pytest.approx([float(each.sum()) for each in coarse], rel=1e-5)
    assert row.sequence_kl == pytest.approx(np.mean([each.sum() for each in coarse]), rel=1e-5)
    assert row.tokens == rollouts.lengths_B.tolist() == [len(each) for each in coarse]
    assert row.prompts == [request.key.prompt for request in rollouts.requests]
    assert row.response_length == pytest.approx(np.mean(row.tokens))
    assert row.truncated == pytest.approx(float(rollouts.truncated_B.double().mean()))


def test_a_support_of_all_ids_gives_the_whole_divergence() -> None:
    """Two of the ids have no mass in either model, so that the support holds −inf."""
    rollouts = rolled_out(top_k=tiny.SIZE)
    row = measured(rollouts)
    _, whole, _, _ = enumerated(rollouts)
    assert row.kl == pytest.approx(token_mean(whole), abs=1e-5)
    assert row.tail_student == pytest.approx(0, abs=1e-6)
    assert row.tail_teacher == pytest.approx(0, abs=1e-6)


def test_entropies_are_those_of_the_whole_vocabulary() -> None:
    rollouts = rolled_out(top_k=2)
    row = measured(rollouts)
    for value, model in (
        (row.student_entropy, tiny.student(torch.float64)),
        (row.teacher_entropy, tiny.teacher(torch.float64)),
    ):
        entropies = []
        for of_row in tiny.visited_rows(model, rollouts):
            entropies += [-reference.kl(log_prob, np.zeros(tiny.SIZE)) for log_prob in of_row]
        assert value == pytest.approx(np.mean(entropies), rel=1e-5)


def test_the_error_is_that_of_a_ratio_over_prompts() -> None:
    """By the variances and the covariance of totals and lengths (Cochran 1977, eq. 6.14)."""
    row = measured(rolled_out(top_k=4))
    totals, lengths = np.array(row.prompt_kl, dtype=float), np.array(row.tokens, dtype=float)
    assert len(set(row.tokens)) > 1, "responses differ in length"
    covariance = np.cov(totals, lengths)
    ratio = totals.sum() / lengths.sum()
    variance = covariance[0, 0] + ratio**2 * covariance[1, 1] - 2 * ratio * covariance[0, 1]
    expected = np.sqrt(variance / len(totals)) / lengths.mean()
    assert row.kl_error == pytest.approx(expected, rel=1e-9)
    assert row.kl == pytest.approx(ratio, rel=1e-6)


def test_one_prompt_has_no_error() -> None:
    requests = tiny.requests(1, tiny.PROMPTS[:1])
    rollouts = generate(tiny.student(), None, requests, Student(), Decoding(6, 4))
    assert measured(rollouts).kl_error is None


def test_positions_are_means_over_the_tokens_that_are_there() -> None:
    rollouts = rolled_out(top_k=4)
    row = measured(rollouts)
    coarse, _, tail_p, tail_q = enumerated(rollouts)
    assert max(row.tokens) > 32
    assert [(each["first"], each["last"]) for each in row.positions] == [(1, 8), (9, 32), (33, 128)]
    for bucket in row.positions:
        part = slice(bucket["first"] - 1, bucket["last"])
        for name, rows in (("kl", coarse), ("tail_student", tail_p), ("tail_teacher", tail_q)):
            inside = [each[part] for each in rows]
            assert bucket[name] == pytest.approx(token_mean(inside), rel=1e-4, abs=1e-7)
            assert bucket["tokens"] == sum(map(len, inside))
    assert sum(bucket["tokens"] for bucket in row.positions) == sum(row.tokens)
