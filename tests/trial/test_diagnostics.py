"""What a step logs, against loops over tokens; padding is filled with values that would show."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from orchestrator.errors import WrongWeights
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.records.log import auroc
from orchestrator.rollouts import Request, Rollouts, TeacherScores
from orchestrator.rules import Dtype
from orchestrator.trial import diagnostics
from orchestrator.trial.diagnostics import mean_present
from orchestrator.workers.digests import digest_rollouts, digest_scores

ROWS, WIDTH, TOP_K = 5, 6, 3
LENGTHS = [6, 1, 3, 2, 5]
REWARDS: list[float | None] = [1.0, 0.0, None, 1.0, 0.0]
PADDING = [float("nan"), 1e30, float("-inf")]


def random_values(seed: int, padding: float) -> Tensor:
    """(B, T) values with `padding` beyond each row's length."""
    values = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed))
    return torch.where(torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None], values, padding)


def batch(padding: float = 0.0) -> tuple[Rollouts, TeacherScores]:
    scores = TeacherScores(
        support_BTK=torch.zeros(ROWS, WIDTH, TOP_K),
        token_BT=random_values(1, padding),
        entropy_BT=random_values(2, padding),
        overlap_BT=random_values(3, padding),
    )
    rollouts = Rollouts(
        requests=[
            Request((1, 2), SequenceKey(Purpose.TRAINING, 0, 4, 70 + row, row % 2))
            for row in range(ROWS)
        ],
        tokens_BT=torch.ones(ROWS, WIDTH, dtype=torch.long),
        lengths_B=torch.tensor(LENGTHS),
        truncated_B=torch.tensor([True, False, False, False, True]),
        student_BT=random_values(4, padding),
        behavior_BT=random_values(5, padding),
        support_ids_BTK=torch.zeros(ROWS, WIDTH, TOP_K, dtype=torch.long),
        measured={
            "beta": random_values(6, padding),
            "behavior_kl": random_values(7, padding).abs(),
        },
    )
    return rollouts, scores


def step_metrics(
    rollouts: Rollouts, scores: TeacherScores | None, rewards: list[float | None]
) -> dict[str, Any]:
    digest = digest_rollouts(rollouts)
    return diagnostics.step_metrics(
        digest, digest_scores(rollouts, scores) if scores else None, rewards
    )


def rollout_rows(
    step: int, rollouts: Rollouts, scores: TeacherScores | None, texts: list[str]
) -> list[dict[str, Any]]:
    scored = digest_scores(rollouts, scores) if scores else None
    return diagnostics.rollout_rows(
        step, rollouts.requests, digest_rollouts(rollouts), scored, REWARDS, texts
    )


def support_scores(rollouts: Rollouts, scores: TeacherScores) -> list[float]:
    return digest_scores(rollouts, scores).log_ratios


def response_tokens(values: Tensor) -> list[list[float]]:
    return [[float(values[row, t]) for t in range(length)] for row, length in enumerate(LENGTHS)]


def token_mean(values: Tensor) -> float:
    flat = list(itertools.chain(*response_tokens(values)))
    return sum(flat) / len(flat)


def test_mean_present_leaves_out_what_is_missing() -> None:
    assert mean_present([1.0, None, 0.0, None, 0.5]) == 0.5
    assert mean_present([None, 0.0]) == 0.0
    assert mean_present([None, None]) is None
    assert mean_present([]) is None


@pytest.mark.parametrize("padding", PADDING)
def test_metrics_are_means_over_response_tokens(padding: float) -> None:
    rollouts, scores = batch(padding)
    metrics = step_metrics(rollouts, scores, REWARDS)
    means = {
        "student_log_prob": rollouts.student_BT,
        "teacher_log_prob": scores.token_BT,
        "teacher_entropy": scores.entropy_BT,
        "support_overlap": scores.overlap_BT,
        "beta": rollouts.measured["beta"],
        "behavior_kl": rollouts.measured["behavior_kl"],
    }
    for name, values in means.items():
        assert metrics[name] == pytest.approx(token_mean(values), abs=1e-6), name
    sequence_kl = [sum(row) for row in response_tokens(rollouts.measured["behavior_kl"])]
    assert metrics["sequence_kl"] == pytest.approx(sum(sequence_kl) / ROWS, abs=1e-6)
    assert metrics["support_auroc"] == auroc_of_pairs(support_scores(rollouts, scores), REWARDS)
    counted = {"response_tokens": 17, "response_length": 3.4, "truncated": 0.4, "reward": 0.5}
    assert {name: metrics[name] for name in counted} == pytest.approx(counted)
    assert set(metrics) == {*means, *counted, "sequence_kl", "support_auroc"}


@pytest.mark.parametrize("padding", PADDING)
def test_support_scores_are_mean_log_ratios(padding: float) -> None:
    rollouts, scores = batch(padding)
    ratios = [
        sum(q - p for q, p in zip(*rows, strict=True)) / len(rows[0])
        for rows in zip(
            response_tokens(scores.token_BT), response_tokens(rollouts.student_BT), strict=True
        )
    ]
    assert support_scores(rollouts, scores) == pytest.approx(ratios, abs=1e-6)


def test_metrics_without_a_teacher_or_without_rewards() -> None:
    rollouts, scores = batch()
    alone = step_metrics(rollouts, None, REWARDS)
    assert not {"teacher_log_prob", "teacher_entropy", "support_overlap", "support_auroc"} & set(
        alone
    )
    ungraded = step_metrics(rollouts, scores, [None] * ROWS)
    assert ungraded["reward"] is None
    assert ungraded["support_auroc"] is None
    assert ungraded["teacher_entropy"] == step_metrics(rollouts, scores, REWARDS)["teacher_entropy"]


@pytest.mark.parametrize("padding", PADDING)
def test_rows_of_rollouts(padding: float) -> None:
    rollouts, scores = batch(padding)
    rows = rollout_rows(4, rollouts, scores, ["one", "two"])
    teacher = [sum(row) / len(row) for row in response_tokens(scores.token_BT)]
    for index, row in enumerate(rows):
        assert (row["step"], row["prompt"], row["sample"]) == (4, 70 + index, index % 2)
        assert (row["length"], row["reward"]) == (LENGTHS[index], REWARDS[index])
        assert row["truncated"] is (index in (0, 4))
        assert row["teacher_log_prob"] == pytest.approx(teacher[index], abs=1e-6)
        assert row["log_ratio"] == support_scores(rollouts, scores)[index]
        assert row.get("text") == (["one", "two"][index] if index < 2 else None)


def test_rows_without_a_teacher_keep_none() -> None:
    rollouts, _ = batch()
    for row in rollout_rows(0, rollouts, None, []):
        assert (row["teacher_log_prob"], row["log_ratio"]) == (None, None)
        assert "text" not in row


@pytest.mark.parametrize(
    ("dtype", "gap", "noted"),
    [
        ("bfloat16", 0.14, False),
        ("bfloat16", 0.16, True),
        ("bfloat16", 0.49, True),
        ("float32", 1e-5, False),
        ("float32", 0.002, True),
    ],
)
def test_a_gap_that_rounding_hardly_makes_is_noted(dtype: Dtype, gap: float, noted: bool) -> None:
    note = diagnostics.sampler_gap_note({"sampler_gap": gap}, dtype)
    assert (note is not None) == noted
    assert note is None or note.startswith(f"sampler and learner are {gap:.2g} nats apart")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gap_that_no_rounding_makes_is_refused(dtype: Dtype) -> None:
    with pytest.raises(WrongWeights, match=r"0\.51 nats apart .* expected at most 0\.5"):
        diagnostics.sampler_gap_note({"sampler_gap": 0.51}, dtype)


def test_steps_whose_sampler_is_the_teacher_have_no_gap() -> None:
    assert diagnostics.sampler_gap_note({"loss": 3.0}, "float32") is None


# --- statistics over rollouts, against loops over their pairs ---


def auroc_of_pairs(values: list[float], rewards: list[float | None]) -> float | None:
    """Share of (correct, incorrect) pairs in the right order, ties half."""
    rated = list(zip(values, rewards, strict=True))
    pairs = [(a, b) for a, right in rated if right == 1 for b, wrong in rated if wrong == 0]
    wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs)
    return wins / len(pairs) if pairs else None


@pytest.mark.parametrize("seed", range(30))
def test_auroc_counts_ordered_pairs(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randint(1, 40)
    levels = rng.choice([1, 2, 5, 1000])  # few levels: many ties
    values = [rng.randrange(levels) / 7 for _ in range(size)]
    rewards = [rng.choice([1.0, 0.0, None]) for _ in range(size)]
    expected = auroc_of_pairs(values, rewards)
    assert auroc(values, rewards) == (
        None if expected is None else pytest.approx(expected, abs=1e-12)
    )


@pytest.mark.parametrize(
    ("values", "rewards", "expected"),
    [
        ([], [], None),
        ([0.3], [1.0], None),
        ([0.3, 0.2], [1.0, 1.0], None),
        ([0.3, 0.2], [0.0, 0.0], None),
        ([0.3, 0.2], [1.0, None], None),
        ([0.3, 0.2], [None, None], None),
        ([0.3, 0.2], [1.0, 0.0], 1.0),
        ([0.2, 0.3], [1.0, 0.0], 0.0),
        ([0.2, 0.2], [1.0, 0.0], 0.5),
        ([0.2, 0.2, 0.2, 0.2], [1.0, 0.0, 1.0, 0.0], 0.5),
        ([2.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0], 0.875),
        ([9.0, 2.0, 1.0], [None, 1.0, 0.0], 1.0),
        ([float("-inf"), 0.0], [0.0, 1.0], 1.0),
    ],
)
def test_auroc_edges(
    values: list[float], rewards: list[float | None], expected: float | None
) -> None:
    assert auroc(values, rewards) == expected
