"""Lays out prompts and responses for scoring and learning: as padded rows, or packed into one row.

Shapes: B sequences, L positions, N response tokens, flattened sequence by sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Inputs:
    """Token ids of one forward pass, and the positions that predict the N response tokens.

    Padded on the right, `ids` are (B, L), and `attention` (B, L) is 1 at tokens. Packed, `ids` are
    (1, L), and `packing` holds the sequence bounds; see `packed`. Hidden states at
    [`rows`, `columns`] predict the tokens.
    """

    ids: Tensor
    attention: Any
    rows: Tensor  # (N,)
    columns: Tensor  # (N,)
    packing: dict[str, Any] = field(default_factory=dict)


def inputs(
    prompts: Sequence[tuple[int, ...]],
    responses: Sequence[Sequence[int]],
    device: torch.device,
    in_one_row: bool,
) -> Inputs:
    """Prompts followed by responses for one forward pass, `packed` or `padded`."""
    return packed(prompts, responses, device) if in_one_row else padded(prompts, responses, device)


def padded(
    prompts: Sequence[tuple[int, ...]], responses: Sequence[Sequence[int]], device: torch.device
) -> Inputs:
    """A row for each sequence, padded on the right, with a mask for any attention."""
    sequences = [[*prompt, *response] for prompt, response in zip(prompts, responses, strict=True)]
    ids = torch.zeros(len(prompts), max(map(len, sequences)), dtype=torch.long)
    attention = torch.zeros_like(ids)
    rows: list[int] = []
    columns: list[int] = []
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
        attention[row, : len(sequence)] = 1
        rows += [row] * len(responses[row])
        # The logits at a position predict the token after it: the prompt's last position predicts
        # the first token of the response, and the response's last position is not read.
        columns += range(len(prompts[row]) - 1, len(sequence) - 1)
    return Inputs(
        ids.to(device), attention.to(device), _tensor(rows, device), _tensor(columns, device)
    )


def packed(
    prompts: Sequence[tuple[int, ...]], responses: Sequence[Sequence[int]], device: torch.device
) -> Inputs:
    """One row of all sequences, for attention that takes their bounds (`engines.common.passes`).

    Positions restart with each sequence. The bounds have the names under which transformers passes
    them on to attention. The mask is a single value, which that attention does not read: for a
    tensor of four dimensions transformers makes no mask of L × L, whatever the architecture.
    """
    ids: list[int] = []
    positions: list[int] = []
    columns: list[int] = []
    lengths: list[int] = []
    for prompt, response in zip(prompts, responses, strict=True):
        start = len(ids) + len(prompt) - 1  # as in `padded`
        columns += range(start, start + len(response))
        ids += [*prompt, *response]
        lengths.append(len(prompt) + len(response))
        positions += range(lengths[-1])
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    packing = {
        "position_ids": _tensor(positions, device)[None],
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }
    columns_N = _tensor(columns, device)
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
    return Inputs(_tensor(ids, device)[None], mask, torch.zeros_like(columns_N), columns_N, packing)


def response_tokens(lengths_B: Tensor, group: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Row in the batch and position in the response, (N,) each, of the rows' response tokens."""
    rows: list[int] = []
    positions: list[int] = []
    for row in group:
        length = int(lengths_B[row])
        rows += [row] * length
        positions += range(length)
    return torch.tensor(rows, dtype=torch.long), torch.tensor(positions, dtype=torch.long)


def micro_batches(
    lengths: Iterable[int], max_tokens: int, in_one_row: bool = False
) -> Iterator[list[int]]:
    """Yield groups of row indices, shortest rows first, of at most `max_tokens` tokens each.

    A group of a single row may have more. A padded group has rows × longest row tokens; rows of
    similar length share one, which keeps padding small. Rows packed into one have the sum of their
    lengths.
    """
    group: list[int] = []
    held = 0
    for length, row in sorted((length, row) for row, length in enumerate(lengths)):
        grown = held + length if in_one_row else length * (len(group) + 1)
        if group and grown > max_tokens:
            yield group
            group, grown = [], length
        group.append(row)
        held = grown
    if group:
        yield group


def _tensor(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.long, device=device)
