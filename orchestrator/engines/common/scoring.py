"""Computes a model's statistics on finished rollouts, in batched passes over their tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from orchestrator.engines.common.causal import CausalModel, canonical
from orchestrator.engines.common.learning import MicroBatch, micro_batches_of
from orchestrator.engines.common.passes import Passes, response_tokens
from orchestrator.engines.common.rounds import teacher_statistics
from orchestrator.engines.interface import Owner
from orchestrator.engines.memory import SCORED_AT_ONCE
from orchestrator.liveness import heartbeat
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.rollouts import Rollouts, TeacherScores

# Tokens × vocabulary of the logits held at once: few enough for a CPU's caches, or enough to keep a
# GPU busy.
HEAD_CHUNK = {"cpu": 2**21, "cuda": SCORED_AT_ONCE}


@torch.no_grad()
def score(
    causal: CausalModel,
    rollouts: Rollouts,
    micro_batch_tokens: int,
    passes: Passes | None = None,
    kernel: bool = False,
) -> TeacherScores:
    """Compute `TeacherScores` at every visited prefix of finished rollouts; of a student its own.

    `passes` default to `Passes.on` the model's device. On a GPU the `kernel` reads a teacher's logits.
    """
    packed = (passes or Passes.on(causal.device, causal.model.dtype)).packed
    scores = blank_scores(rollouts)
    for batch in micro_batches_of(rollouts, None, micro_batch_tokens, packed):
        write_scores(scores, rollouts, batch.rows, _score_batch(causal, batch, packed, kernel))
        heartbeat.advance()
    return scores


def _score_batch(
    causal: CausalModel, batch: MicroBatch, packed: bool, kernel: bool
) -> TeacherScores:
    """The statistics of one micro-batch; frees its hidden states before the next one's."""
    hidden = causal.predicting(batch.inputs(causal.device, packed))
    targets = batch.targets
    return read_model(
        hidden, causal.head, causal.space, causal.owner, targets.tokens, targets.support, kernel
    )


def blank_scores(rollouts: Rollouts) -> TeacherScores:
    """Zeros in the shape of the scores of a batch."""
    shape = rollouts.tokens_BT.shape
    out = {field.name: torch.zeros(shape) for field in dataclasses.fields(TeacherScores)}
    out["support_BTK"] = torch.zeros(rollouts.support_ids_BTK.shape)
    return TeacherScores(**out)


def write_scores(
    scores: TeacherScores, rollouts: Rollouts, group: Sequence[int], found: TeacherScores
) -> None:
    """Write the statistics `found` at the response tokens of the rows in `group`."""
    at = response_tokens(rollouts.lengths_B, group)
    for name, values in vars(found).items():
        getattr(scores, name)[at] = values


def read_model(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    space: TokenSpace,
    owner: Owner,
    tokens: Tensor,
    support: Tensor,
    kernel: bool = False,
) -> TeacherScores:
    """Compute statistics of a model of `owner` at N prefixes, in float32 on the CPU.

    Takes hidden states (N, H), tokens (N,) and support ids (N, K). `head` computes logits (n, rows)
    from hidden states (n, H), about HEAD_CHUNK values at a time.
    """
    width = canonical(space, owner, head(hidden[:0])).shape[-1]
    chunk = max(1, HEAD_CHUNK[hidden.device.type] // width)
    tokens = tokens.to(hidden.device)
    support = support.to(hidden.device)
    parts: dict[str, list[Tensor]] = {}
    # One pass also over no tokens, which gives every statistic its shape.
    for start in range(0, max(1, len(hidden)), chunk):
        part = slice(start, start + chunk)
        logits = head(hidden[part])
        statistics = _statistics(logits, space, owner, tokens[part], support[part], kernel)
        for name, value in vars(statistics).items():
            parts.setdefault(name, []).append(value)
    # Each copy to the host waits for the device: copy all chunks at once.
    joined = {name: torch.cat(values).float().cpu() for name, values in parts.items()}
    return TeacherScores(**joined)


def _statistics(
    logits: Tensor,
    space: TokenSpace,
    owner: Owner,
    tokens: Tensor,
    support: Tensor,
    kernel: bool,
) -> TeacherScores:
    if kernel and logits.is_cuda and owner == "teacher":
        from orchestrator.engines.common import vocabulary_kernels  # Triton, which CPUs lack

        return vocabulary_kernels.teacher_statistics(logits, space, tokens, support)
    return teacher_statistics(canonical(space, owner, logits), tokens, support)
