"""Micro-batches of a rank's forward passes, and the division of rows among ranks. No verl.

Shapes: N response tokens of a micro-batch, flattened row by row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from orchestrator.engines.common.learning import Targets
from orchestrator.engines.common.packing import Inputs, inputs, micro_batches
from orchestrator.rollouts import Rollouts, TeacherScores


@dataclass(frozen=True)
class MicroBatch:
    """Rows of a batch with the targets of their response tokens. It may have no rows."""

    rows: list[int]  # in the whole batch
    prompts: list[tuple[int, ...]]
    responses: list[list[int]]
    targets: Targets

    @property
    def tokens(self) -> int:
        """N."""
        return len(self.targets.tokens)


def share_out(
    rollouts: Rollouts,
    scores: TeacherScores | None,
    max_tokens: int,
    ranks: int,
    packed: bool = False,
) -> list[list[MicroBatch]]:
    """The micro-batches of each rank, the same number for all.

    No pass exceeds `max_tokens`, padding included, except for a single longer row. A batch smaller
    than the ranks' joint capacity is cut finer, so that no rank is idle.
    """
    lengths: list[int] = []
    for request, tokens in zip(rollouts.requests, rollouts.lengths_B.tolist(), strict=True):
        lengths.append(len(request.prompt_ids) + tokens)
    if ranks > 1:
        fair = -(-sum(lengths) // ranks)
        max_tokens = min(max_tokens, fair)
    shares: list[list[MicroBatch]] = [[] for _ in range(ranks)]
    for position, group in enumerate(micro_batches(lengths, max_tokens, packed)):
        shares[position % ranks].append(_micro_batch(rollouts, scores, group))
    # FSDP's collectives need all ranks in every pass: ranks with one pass fewer get an empty one.
    for share in shares:
        if len(share) < len(shares[0]):
            share.append(_micro_batch(rollouts, scores, []))
    return shares


def _micro_batch(rollouts: Rollouts, scores: TeacherScores | None, group: list[int]) -> MicroBatch:
    return MicroBatch(
        group,
        [rollouts.requests[row].prompt_ids for row in group],
        [rollouts.response(row) for row in group],
        Targets.gather(rollouts, scores, group),
    )


def rank_inputs(batch: MicroBatch, packed: bool, device: torch.device) -> Inputs:
    """The model inputs of the rows; of one token for an empty batch, since a pass needs some."""
    if not batch.rows:
        return inputs([(0,)], [[]], device, packed)
    return inputs(batch.prompts, batch.responses, device, packed)
