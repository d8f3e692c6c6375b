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
from orchestrator.liveness import pulse
from orchestrator.rollouts import Rollouts, TeacherScores

# Tokens × vocabulary of the logits held at once: on CPUs as caches allow, on GPUs enough to fill
# one.
HEAD_CHUNK = {"cpu": 2**21, "cuda": SCORED_AT_ONCE}


@torch.no_grad()
def score(
    teacher: CausalModel, rollouts: Rollouts, micro_batch_tokens: int, passes: Passes | None = None
) -> TeacherScores:
    """log q of support and tokens, entropy and overlap at every visited prefix (see
    `TeacherScores`).

    `passes` default to `Passes.on` the teacher's device.
    """
    packed = (passes or Passes.on(teacher.device, teacher.model.dtype)).packed
    rows, width, top_k = rollouts.support_ids_BTK.shape
    out = {field.name: torch.zeros(rows, width) for field in dataclasses.fields(TeacherScores)}
    out["support_BTK"] = torch.zeros(rows, width, top_k)
    lengths = [
        len(r.prompt_ids) + int(n)
        for r, n in zip(rollouts.requests, rollouts.lengths_B, strict=True)
    ]
    for group in micro_batches(lengths, micro_batch_tokens, packed):
        _score_group(teacher, rollouts, group, packed, out)
        pulse.advance()
    return TeacherScores(**out)


def _score_group(
    teacher: CausalModel, rollouts: Rollouts, group: list[int], packed: bool, out: dict[str, Tensor]
) -> None:
    """Write the statistics of one micro-batch, and free its hidden states before the next one's."""
    prompts = [rollouts.requests[row].prompt_ids for row in group]
    hidden = teacher.predicting(
        inputs(prompts, [rollouts.response(row) for row in group], teacher.device, packed)
    )
    rows, positions = response_tokens(rollouts.lengths_B, group)
    tokens, support = rollouts.tokens_BT[rows, positions], rollouts.support_ids_BTK[rows, positions]
    statistics = read_teacher(
        hidden, lambda part: teacher.log_prob(teacher.head(part)), tokens, support
    )
    for name, value in vars(statistics).items():
        out[name][rows, positions] = value


def read_teacher(
    hidden: Tensor, log_prob: Callable[[Tensor], Tensor], tokens: Tensor, support: Tensor
) -> TeacherScores:
    """Statistics at N prefixes in float32 on the CPU: from hidden states (N, H), tokens (N,) and
    support ids (N, K).

    `log_prob` computes log q (n, V) from hidden states (n, H), at most HEAD_CHUNK values at a time.
    """
    width = log_prob(hidden[:0]).shape[-1]
    chunk = max(1, HEAD_CHUNK[hidden.device.type] // width)
    parts: list[dict[str, Tensor]] = []
    for start in range(0, max(1, len(hidden)), chunk):
        part = slice(start, start + chunk)
        at_part = tokens[part].to(hidden.device), support[part].to(hidden.device)
        parts.append(vars(teacher_statistics(log_prob(hidden[part]), *at_part)))
    # Each copy to the host waits for the device: copy all chunks at once.
    return TeacherScores(
        **{name: torch.cat([part[name] for part in parts]).float().cpu() for name in parts[0]}
    )
