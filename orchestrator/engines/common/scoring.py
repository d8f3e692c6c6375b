"""Computes the teacher's statistics on finished rollouts, in batched passes over their tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from orchestrator.engines.budget import SCORED_AT_ONCE
from orchestrator.engines.common.causal import CausalModel
from orchestrator.engines.common.packing import inputs, micro_batches, response_tokens
from orchestrator.engines.common.passes import Passes
from orchestrator.engines.common.rounds import teacher_statistics
from orchestrator.liveness import heartbeat
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.rollouts import Rollouts, TeacherScores

# Tokens × vocabulary of the logits held at once: few enough for a CPU's caches, or enough to keep a
# GPU busy.
HEAD_CHUNK = {"cpu": 2**21, "cuda": SCORED_AT_ONCE}


@torch.no_grad()
def score(
    teacher: CausalModel,
    rollouts: Rollouts,
    micro_batch_tokens: int,
    passes: Passes | None = None,
    kernel: bool = False,
) -> TeacherScores:
    """Compute `TeacherScores` at every visited prefix of finished rollouts.

    `passes` default to `Passes.on` the teacher's device. On a GPU the `kernel` reads the logits.
    """
    packed = (passes or Passes.on(teacher.device, teacher.model.dtype)).packed
    rows, width, top_k = rollouts.support_ids_BTK.shape
    out = {field.name: torch.zeros(rows, width) for field in dataclasses.fields(TeacherScores)}
    out["support_BTK"] = torch.zeros(rows, width, top_k)
    lengths: list[int] = []
    for request, tokens in zip(rollouts.requests, rollouts.lengths_B.tolist(), strict=True):
        lengths.append(len(request.prompt_ids) + tokens)
    for group in micro_batches(lengths, micro_batch_tokens, packed):
        _score_group(teacher, rollouts, group, packed, kernel, out)
        heartbeat.advance()
    return TeacherScores(**out)


def _score_group(
    teacher: CausalModel,
    rollouts: Rollouts,
    group: list[int],
    packed: bool,
    kernel: bool,
    out: dict[str, Tensor],
) -> None:
    """Write the statistics of one micro-batch, and free its hidden states before the next one's."""
    prompts = [rollouts.requests[row].prompt_ids for row in group]
    responses = [rollouts.response(row) for row in group]
    hidden = teacher.predicting(inputs(prompts, responses, teacher.device, packed))
    rows, positions = response_tokens(rollouts.lengths_B, group)
    statistics = read_teacher(
        hidden,
        teacher.head,
        teacher.space,
        rollouts.tokens_BT[rows, positions],
        rollouts.support_ids_BTK[rows, positions],
        kernel,
    )
    for name, value in vars(statistics).items():
        out[name][rows, positions] = value


def read_teacher(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    space: TokenSpace,
    tokens: Tensor,
    support: Tensor,
    kernel: bool = False,
) -> TeacherScores:
    """Compute statistics at N prefixes, in float32 on the CPU.

    Takes hidden states (N, H), tokens (N,) and support ids (N, K). `head` computes logits (n, rows)
    from hidden states (n, H), about HEAD_CHUNK values at a time.
    """
    width = space.teacher_log_prob(head(hidden[:0])).shape[-1]
    chunk = max(1, HEAD_CHUNK[hidden.device.type] // width)
    tokens = tokens.to(hidden.device)
    support = support.to(hidden.device)
    parts: dict[str, list[Tensor]] = {}
    # One pass also over no tokens, which gives every statistic its shape.
    for start in range(0, max(1, len(hidden)), chunk):
        part = slice(start, start + chunk)
        statistics = _statistics(head(hidden[part]), space, tokens[part], support[part], kernel)
        for name, value in vars(statistics).items():
            parts.setdefault(name, []).append(value)
    # Each copy to the host waits for the device: copy all chunks at once.
    joined = {name: torch.cat(values).float().cpu() for name, values in parts.items()}
    return TeacherScores(**joined)


def _statistics(
    logits: Tensor, space: TokenSpace, tokens: Tensor, support: Tensor, kernel: bool
) -> TeacherScores:
    if kernel and logits.is_cuda:
        from orchestrator.engines.common import vocabulary_kernels  # Triton, which CPUs lack

        return vocabulary_kernels.teacher_statistics(logits, space, tokens, support)
    return teacher_statistics(space.teacher_log_prob(logits), tokens, support)
