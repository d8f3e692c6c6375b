"""Makes the log rows of a training step from the digests of its rollouts and scores, and rewards.

A mean over no values is missing (None), not zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from orchestrator.data.prompts import prompt_text, token_texts
from orchestrator.errors import WrongWeights
from orchestrator.grading.gold import Gold
from orchestrator.records.log import RolloutSample, auroc
from orchestrator.rollouts import Request
from orchestrator.rules import Dtype
from orchestrator.workers.digests import RolloutDigest, ScoresDigest

# Nats between learner and sampler, mean over a step's tokens: above the first a line of the log
# says so, and above the second the unit ends. Right weights in bfloat16 read 0.03 on a whole model
# and up to 0.11 on a damaged one (docs/engines.md); float32 reads 1e-6.
GAP_NOTED: Mapping[Dtype, float] = {"float32": 0.001, "bfloat16": 0.15}
GAP_REFUSED = 0.5


def step_metrics(
    digest: RolloutDigest, scores: ScoresDigest | None, rewards: list[float | None]
) -> dict[str, Any]:
    """Make a row of `metrics.jsonl` (`records.log`) without the learner's numbers."""
    metrics: dict[str, Any] = {"reward": mean_present(rewards)}
    metrics |= digest.sampled
    if scores is not None:
        metrics |= scores.metrics
        metrics["support_auroc"] = auroc(scores.log_ratios, rewards)
    return metrics | digest.behavior


def sampler_gap_note(learned: Mapping[str, float], dtype: Dtype) -> str | None:
    """A line about a gap between learner and sampler that rounding hardly makes; None without one.

    Raises WrongWeights for a gap that no rounding makes. Steps without scores, among them those of
    the supervised stage, whose sampler is the teacher, measure none.
    """
    gap = learned.get("sampler_gap")
    if gap is None or gap <= GAP_NOTED[dtype]:
        return None
    if gap > GAP_REFUSED:
        raise WrongWeights(
            f"sampler and learner are {gap:.2g} nats apart on sampled tokens (sampler_gap): expected "
            f"at most {GAP_REFUSED:g}: the sampler has other weights, or computes other numbers"
        )
    return (
        f"sampler and learner are {gap:.2g} nats apart on sampled tokens (sampler_gap): expected at "
        f"most {GAP_NOTED[dtype]:g} in {dtype}: do both have the same weights and right kernels?"
    )


def rollout_rows(
    step: int,
    requests: Sequence[Request],
    digest: RolloutDigest,
    scores: ScoresDigest | None,
    rewards: list[float | None],
    texts: list[str],
) -> list[dict[str, Any]]:
    """Make rows of `rollouts.jsonl`; only the first rollouts have `texts`, which take much space."""
    rows: list[dict[str, Any]] = []
    for index, request in enumerate(requests):
        row = {
            "step": step,
            "prompt": request.key.prompt,
            "sample": request.key.sample,
            "length": len(digest.responses[index]),
            "truncated": digest.truncated[index],
            "reward": rewards[index],
            "teacher_log_prob": None if scores is None else scores.log_probs[index],
            "log_ratio": None if scores is None else scores.log_ratios[index],
        }
        if index < len(texts):
            row["text"] = texts[index]
        rows.append(row)
    return rows


def rollout_samples(
    requests: Sequence[Request],
    digest: RolloutDigest,
    rewards: list[float | None],
    golds: Mapping[int, Gold | None],
    tokenizer: PreTrainedTokenizerBase,
) -> list[RolloutSample]:
    """The rollouts that the digest has token by token; `golds` are by the prompt's number."""
    samples = []
    for row, trace in enumerate(digest.traces):
        key, gold = requests[row].key, golds[requests[row].key.prompt]
        samples.append(
            RolloutSample(
                index=key.prompt,
                sample=key.sample,
                prompt=prompt_text(requests[row].prompt_ids, tokenizer),
                gold=None if gold is None else gold.answer,
                reward=rewards[row],
                truncated=digest.truncated[row],
                tokens=token_texts(digest.responses[row], tokenizer),
                ids=digest.responses[row],
                **vars(trace),
            )
        )
    return samples


def mean_present(values: list[float | None]) -> float | None:
    """Mean of the values that are not missing."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None
