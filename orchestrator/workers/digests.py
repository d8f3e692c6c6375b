"""Digests of rollouts for the trial: responses to grade and numbers to log, no large tensors.

Digests are computed beside the tensors, which do not move: at paper size one step's support ids and
log q are 352 MB. Means over tokens are over all response tokens of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from orchestrator.policy.objective import support_mass, token_loss
from orchestrator.records.log import BUCKET_FACTOR, FIRST_BUCKET, HeldOut
from orchestrator.rollouts import SURVIVED, Rollouts, TeacherScores

DECIMALS = 4  # of a number in a trace


@dataclass(frozen=True)
class ScoresDigest:
    """The teacher's scores in nats: `metrics` are token means, lists have one entry per rollout.

    `log_ratios` are mean_t(log q(y_t) − log p(y_t)): the teacher's support of a rollout beyond the
    student's.
    """

    metrics: dict[str, float]
    log_probs: list[float]
    log_ratios: list[float]


@dataclass(frozen=True)
class Trace:
    """Values of each token of one rollout: see `records.log.RolloutSample`."""

    student: list[float]
    behavior: list[float]
    teacher: list[float] | None
    survived: list[bool] | None
    measured: dict[str, list[float]]


@dataclass(frozen=True)
class RolloutDigest:
    """The token ids of each response, its EOS included, and the numbers to log.

    `sampled` and `behavior` are parts of a row of `metrics.jsonl`. `scores` is set if the behavior
    asked the teacher while decoding, since the same passes gave the teacher's statistics.
    """

    responses: list[list[int]]
    truncated: list[bool]
    sampled: dict[str, Any]
    behavior: dict[str, Any]
    scores: ScoresDigest | None = None
    traces: list[Trace] = field(default_factory=list)


def digest_rollouts(rollouts: Rollouts, traced: int = 0) -> RolloutDigest:
    """The digest of sampled responses, the first `traced` of them token by token."""
    mask = rollouts.mask_BT
    lengths = rollouts.lengths_B.double()
    sampled = {
        "response_tokens": int(lengths.sum()),
        "response_length": float(lengths.mean()),
        "truncated": float(rollouts.truncated_B.double().mean()),
        "student_log_prob": _token_mean(rollouts.student_BT, mask),
    }
    behavior: dict[str, Any] = {}
    for name, values in rollouts.measured.items():
        if name != SURVIVED:  # `accepted_drafts` counts these
            behavior[name] = _token_mean(values, mask)
    if "behavior_kl" in rollouts.measured:
        kl = torch.where(mask, rollouts.measured["behavior_kl"].double(), 0.0)
        behavior["sequence_kl"] = float(kl.sum(-1).mean())
    return RolloutDigest(
        responses=[rollouts.response(row) for row in range(len(rollouts.requests))],
        truncated=rollouts.truncated_B.tolist(),
        sampled=sampled,
        behavior=behavior | speculation_metrics(rollouts),
        scores=None if rollouts.teacher is None else digest_scores(rollouts, rollouts.teacher),
        traces=[_trace(rollouts, row) for row in range(min(traced, len(rollouts.requests)))],
    )


def _trace(rollouts: Rollouts, row: int) -> Trace:
    length = int(rollouts.lengths_B[row])

    def rounded(values_BT: Tensor) -> list[float]:
        return [round(value, DECIMALS) for value in values_BT[row, :length].tolist()]

    measured = {name: rounded(values) for name, values in rollouts.measured.items()}
    survived = measured.pop(SURVIVED, None)
    return Trace(
        student=rounded(rollouts.student_BT),
        behavior=rounded(rollouts.behavior_BT),
        teacher=None if rollouts.teacher is None else rounded(rollouts.teacher.token_BT),
        survived=None if survived is None else [value == 1 for value in survived],
        measured=measured,
    )


def digest_scores(rollouts: Rollouts, scores: TeacherScores) -> ScoresDigest:
    """The digest of the teacher's scores."""
    mask = rollouts.mask_BT
    metrics = {
        "teacher_log_prob": _token_mean(scores.token_BT, mask),
        "teacher_entropy": _token_mean(scores.entropy_BT, mask),
        "support_overlap": _token_mean(scores.overlap_BT, mask),
    }
    log_ratio_BT = scores.token_BT - rollouts.student_BT
    return ScoresDigest(
        metrics, _row_means(scores.token_BT, rollouts), _row_means(log_ratio_BT, rollouts)
    )


def digest_held_out(
    rollouts: Rollouts, student: TeacherScores, teacher: TeacherScores, step: int
) -> HeldOut:
    """The row of held_out.jsonl after `step` steps; of each prompt there is one response.

    `student` and `teacher` are the statistics of the two models at the visited prefixes.
    """
    mask, lengths = rollouts.mask_BT, rollouts.lengths_B.double()
    log_p, log_q = student.support_BTK.flatten(0, 1), teacher.support_BTK.flatten(0, 1)
    at_token = {
        "kl": token_loss("tail", log_p, log_q),
        "tail_student": (1 - support_mass(log_p.double())).clamp_min(0),
        "tail_teacher": (1 - support_mass(log_q.double())).clamp_min(0),
    }
    of_tokens = {name: values.view(mask.shape) for name, values in at_token.items()}
    summed_B = torch.where(mask, of_tokens["kl"].double(), 0.0).sum(-1)
    means = {name: _token_mean(values, mask) for name, values in of_tokens.items()}
    return HeldOut(
        step=step,
        **means,
        kl_error=_ratio_error(summed_B, lengths),
        sequence_kl=float(summed_B.mean()),
        student_entropy=_token_mean(student.entropy_BT, mask),
        teacher_entropy=_token_mean(teacher.entropy_BT, mask),
        response_length=float(lengths.mean()),
        truncated=float(rollouts.truncated_B.double().mean()),
        prompts=[request.key.prompt for request in rollouts.requests],
        tokens=rollouts.lengths_B.tolist(),
        prompt_kl=summed_B.tolist(),
        positions=_by_position(of_tokens, mask),
    )


def _ratio_error(totals: Tensor, sizes: Tensor) -> float | None:
    """The standard error of Σ totals ÷ Σ sizes, (B,) each; None for fewer than two.

    √(Σ(y − R·x)² ÷ (B(B − 1))) ÷ x̄ (Cochran 1977, "Sampling Techniques", eq. 6.13, without the
    finite population correction).
    """
    count = len(totals)
    if count < 2:
        return None
    residuals = totals - totals.sum() / sizes.sum() * sizes
    return float((residuals.square().sum() / (count * (count - 1))).sqrt() / sizes.mean())


def _by_position(of_tokens: Mapping[str, Tensor], mask: Tensor) -> list[dict[str, Any]]:
    """Token means (B, T) over buckets of positions, each BUCKET_FACTOR times as far as the last."""
    buckets: list[dict[str, Any]] = []
    first, last = 0, FIRST_BUCKET
    while first < mask.shape[1]:
        part = slice(first, last)
        bucket: dict[str, Any] = {"first": first + 1, "last": last}
        bucket["tokens"] = int(mask[:, part].sum())
        for name, values in of_tokens.items():
            bucket[name] = _token_mean(values[:, part], mask[:, part])
        buckets.append(bucket)
        first, last = last, BUCKET_FACTOR * last
    return buckets


def speculation_metrics(rollouts: Rollouts) -> dict[str, Any]:
    """Measurements of the drafts of blended rollouts; empty if decoding did not ask the teacher.

    `rounds_per_token` is the mean over sequences of teacher passes ÷ tokens. `teacher_positions`
    counts the drafts that teacher passes judged. `accepted_drafts` counts the survivors, up to the
    first rejection of each round, and including drafts beyond a row's end. Their ratio
    `draft_acceptance` is lower than `acceptance`, because a rejected draft loses its successors.
    `draft_length` is the mean γ, which is shorter at the end of a batch.
    """
    if not rollouts.speculation:
        return {}
    rounds = rollouts.speculation["rounds"]
    drafted = rollouts.speculation["drafted"]
    accepted = rollouts.speculation["accepted"]
    return {
        "rounds_per_token": float((rounds.double() / rollouts.lengths_B).mean()),
        "teacher_positions": int(drafted.sum()),
        "accepted_drafts": int(accepted.sum()),
        "draft_acceptance": float(accepted.sum() / drafted.sum()),
        "draft_length": float(drafted.sum() / rounds.sum()),
    }


def _token_mean(values_BT: Tensor, mask_BT: Tensor) -> float:
    return float(values_BT[mask_BT].double().mean())


def _row_means(values_BT: Tensor, rollouts: Rollouts) -> list[float]:
    summed = torch.where(rollouts.mask_BT, values_BT.double(), 0.0).sum(-1)
    return (summed / rollouts.lengths_B).tolist()
