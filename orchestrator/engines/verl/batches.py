"""What one forward pass of a rank works on, and how rows are shared out among ranks. No verl.

Shapes: N response tokens of a micro-batch, flattened row by row; L positions; K support ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestrator.engines.torch.causal import micro_batches, pack
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


@dataclass(frozen=True)
class Inputs:
    """Token ids as the model takes them, (B, L) or packed (1, L), and where the N response tokens are predicted."""

    ids: Tensor
    attention: Tensor | None  # (B, L); None where sequences are packed
    positions: Tensor | None  # (1, L), from 0 in each packed sequence; None where they aren't packed
    rows: Tensor  # (N,)
    columns: Tensor  # (N,)


def share_out(rollouts: Rollouts, scores: TeacherScores | None, max_tokens: int, ranks: int) -> list[list[MicroBatch]]:
    """The micro-batches of each rank, equally many: FSDP's collectives need all ranks in every pass.

    No pass has more than `max_tokens` padded tokens, unless a single row has. Where the whole batch is less than what
    the ranks could take at once, it's cut finer, so that none is idle.
    """
    lengths = [len(r.prompt_ids) + int(n) for r, n in zip(rollouts.requests, rollouts.lengths_B, strict=True)]
    fair = -(-sum(lengths) // ranks)
    groups = list(micro_batches(lengths, min(max_tokens, fair) if ranks > 1 else max_tokens))
    shares: list[list[MicroBatch]] = [[] for _ in range(ranks)]
    for position, group in enumerate(groups):
        shares[position % ranks].append(_micro_batch(rollouts, scores, group))
    for share in shares:
        if len(share) < len(shares[0]):
            share.append(_micro_batch(rollouts, scores, []))
    return shares


def _micro_batch(rollouts: Rollouts, scores: TeacherScores | None, group: list[int]) -> MicroBatch:
    rows, positions = [], []
    for row in group:
        rows += [row] * int(rollouts.lengths_B[row])
        positions += range(int(rollouts.lengths_B[row]))
    index = torch.tensor(rows, dtype=torch.long), torch.tensor(positions, dtype=torch.long)
    return MicroBatch(
        group,
        [rollouts.requests[row].prompt_ids for row in group],
        [rollouts.response(row) for row in group],
        Targets.gather(rollouts, scores, *index),
    )


def inputs(batch: MicroBatch, packed: bool, device: torch.device) -> Inputs:
    """The rows as a model takes them, padded on the right or packed into one; one token where there are no rows."""
    prompts, responses = (batch.prompts, batch.responses) if batch.rows else ([(0,)], [[]])
    if not packed:
        padded = pack(prompts, responses, device)
        return Inputs(padded.ids, padded.attention, None, padded.rows, padded.columns)
    ids: list[int] = []
    positions: list[int] = []
    columns: list[int] = []
    for prompt, response in zip(prompts, responses, strict=True):
        # As in `pack`: the logits at a position predict the token after it.
        start = len(ids) + len(prompt) - 1
        columns += range(start, start + len(response))
        ids += [*prompt, *response]
        positions += range(len(prompt) + len(response))
    return Inputs(
        _row(ids, device)[None],
        None,
        _row(positions, device)[None],
        torch.zeros(len(columns), dtype=torch.long, device=device),
        _row(columns, device),
    )


def _row(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.long, device=device)
