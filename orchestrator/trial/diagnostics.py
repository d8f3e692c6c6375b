"""What a training step logs: pure functions of its rollouts, teacher scores and rewards.

Means over tokens are over all response tokens of the batch; a mean over nothing is missing (None), not zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from orchestrator.rollouts import Rollouts, TeacherScores


def step_metrics(rollouts: Rollouts, scores: TeacherScores | None, rewards: list[float | None]) -> dict[str, Any]:
    """One row of `metrics.jsonl`, the learner's numbers apart. Nats, tokens, shares in [0, 1]."""
    mask, lengths = rollouts.mask_BT, rollouts.lengths_B.double()
    metrics: dict[str, Any] = {
        "reward": mean_present(rewards),
        "response_tokens": int(lengths.sum()),
        "response_length": float(lengths.mean()),
        "truncated": float(rollouts.truncated_B.double().mean()),
        "student_log_prob": _token_mean(rollouts.student_BT, mask),
    }
    if scores is not None:
        metrics |= {
            "teacher_log_prob": _token_mean(scores.token_BT, mask),
            "teacher_entropy": _token_mean(scores.entropy_BT, mask),
            "support_overlap": _token_mean(scores.overlap_BT, mask),
            "support_auroc": auroc(support_scores(rollouts, scores), rewards),
        }
    for name, values in rollouts.measured.items():
        metrics[name] = _token_mean(values, mask)
    if "behavior_kl" in rollouts.measured:
        kl = torch.where(mask, rollouts.measured["behavior_kl"].double(), 0.0)
        metrics["sequence_kl"] = float(kl.sum(-1).mean())
    return metrics | speculation_metrics(rollouts)


def speculation_metrics(rollouts: Rollouts) -> dict[str, Any]:
    """What the drafts of a blended rollout came to; empty where the teacher was not asked while decoding.

    `rounds_per_token` is the mean over sequences of teacher passes ÷ tokens; `teacher_positions` are the drafts that
    teacher passes judged, `accepted_drafts` those that survived, up to the first rejection of each round and with those
    beyond a row's end. Their ratio `draft_acceptance` is lower than `acceptance`, because what follows a rejected draft
    is lost with it; `draft_length` is γ as it came out, shorter at the end of a batch.
    """
    if not rollouts.speculation:
        return {}
    rounds, drafted, accepted = (rollouts.speculation[name] for name in ("rounds", "drafted", "accepted"))
    return {
        "rounds_per_token": float((rounds.double() / rollouts.lengths_B).mean()),
        "teacher_positions": int(drafted.sum()),
        "accepted_drafts": int(accepted.sum()),
        "draft_acceptance": float(accepted.sum() / drafted.sum()),
        "draft_length": float(drafted.sum() / rounds.sum()),
    }


def rollout_rows(
    step: int, rollouts: Rollouts, scores: TeacherScores | None, rewards: list[float | None], texts: list[str]
) -> list[dict[str, Any]]:
    """Rows of `rollouts.jsonl`; `texts` belong to the first rollouts, the others keep none."""
    mean_q = _row_means(scores.token_BT, rollouts) if scores else [None] * len(rewards)
    support = support_scores(rollouts, scores) if scores else [None] * len(rewards)
    rows = []
    for index, request in enumerate(rollouts.requests):
        row = {
            "step": step,
            "prompt": request.key.prompt,
            "sample": request.key.sample,
            "length": int(rollouts.lengths_B[index]),
            "truncated": bool(rollouts.truncated_B[index]),
            "reward": rewards[index],
            "teacher_log_prob": mean_q[index],
            "log_ratio": support[index],
        }
        rows.append(row | ({"text": texts[index]} if index < len(texts) else {}))
    return rows


def support_scores(rollouts: Rollouts, scores: TeacherScores) -> list[float]:
    """mean_t(log q(y_t) − log p(y_t)) of each rollout: how much more the teacher supports it than the student."""
    return _row_means(scores.token_BT - rollouts.student_BT, rollouts)


def auroc(values: list[float], rewards: list[float | None]) -> float | None:
    """Probability that a correct rollout scores above an incorrect one, ties counted half; None without both."""
    correct = torch.tensor([v for v, r in zip(values, rewards, strict=True) if r == 1.0], dtype=torch.float64)
    wrong = torch.tensor([v for v, r in zip(values, rewards, strict=True) if r == 0.0], dtype=torch.float64)
    if len(correct) == 0 or len(wrong) == 0:
        return None
    above = (correct[:, None] > wrong).double() + 0.5 * (correct[:, None] == wrong).double()
    return float(above.mean())


def mean_present(values: list[float | None]) -> float | None:
    """Mean of the values that are there."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def _token_mean(values_BT: Tensor, mask_BT: Tensor) -> float:
    return float(values_BT[mask_BT].double().mean())


def _row_means(values_BT: Tensor, rollouts: Rollouts) -> list[float]:
    summed = torch.where(rollouts.mask_BT, values_BT.double(), 0.0).sum(-1)
    return (summed / rollouts.lengths_B).tolist()
