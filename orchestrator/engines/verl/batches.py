"""What one forward pass of a rank works on, and how rows are shared out among ranks. No verl.

Shapes: N response tokens of a micro-batch, flattened row by row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from orchestrator.engines.torch.packing import Inputs, inputs, micro_batches, response_tokens
from orchestrator.engines.torch.rollout_loss import Targets
from orchestrator.rollouts import Rollouts, TeacherScores


@dataclass(frozen=True)
class MicroBatch:
    """Rows of a batch with what their response tokens are trained towards. It may have no rows."""

    rows: list[int]  # in the whole batch
    prompts: list[tuple[int, ...]]
    responses: list[list[int]]
    targets: Targets

    @property
    def tokens(self) -> int:
        """N."""
        return len(self.targets.tokens)


def share_out(
    rollouts: Rollouts, scores: TeacherScores | None, max_tokens: int, ranks: int, packed: bool = False
) -> list[list[MicroBatch]]:
    """The micro-batches of each rank, equally many: FSDP's collectives need all ranks in every pass.

    No pass has more than `max_tokens`, padding included, unless a single row has. Where the whole batch is less than
    what the ranks could take at once, it's cut finer, so that none is idle.
    """
    lengths = [len(r.prompt_ids) + int(n) for r, n in zip(rollouts.requests, rollouts.lengths_B, strict=True)]
    fair = -(-sum(lengths) // ranks)
    groups = list(micro_batches(lengths, min(max_tokens, fair) if ranks > 1 else max_tokens, packed))
    shares: list[list[MicroBatch]] = [[] for _ in range(ranks)]
    for position, group in enumerate(groups):
        shares[position % ranks].append(_micro_batch(rollouts, scores, group))
    for share in shares:
        if len(share) < len(shares[0]):
            share.append(_micro_batch(rollouts, scores, []))
    return shares


def _micro_batch(rollouts: Rollouts, scores: TeacherScores | None, group: list[int]) -> MicroBatch:
    return MicroBatch(
        group,
        [rollouts.requests[row].prompt_ids for row in group],
        [rollouts.response(row) for row in group],
        Targets.gather(rollouts, scores, *response_tokens(rollouts.lengths_B, group)),
    )


def rank_inputs(batch: MicroBatch, packed: bool, device: torch.device) -> Inputs:
    """The rows as a model takes them; one token where there are no rows, since all ranks make each pass."""
    prompts, responses = (batch.prompts, batch.responses) if batch.rows else ([(0,)], [[]])
    return inputs(prompts, responses, device, packed)
