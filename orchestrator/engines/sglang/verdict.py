"""Judges a round of drafts, in parts that fit beside the caches. No SGLang.

The student's distributions of a whole round exist at once, because its drafts were drawn from them.
The teacher's distributions, and the solver's temporaries, are made for a part of the requests at a
time, from hidden states. Each part ends in one copy to the host.

Shapes: B requests, γ drafts, V vocabulary rows, N emitted positions of a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from orchestrator.engines.budget import JUDGED_AT_ONCE
from orchestrator.engines.common.rounds import Round, judge, kept_of
from orchestrator.engines.sglang.blending_rows import Order, pack, row_type
from orchestrator.policy import speculation
from orchestrator.policy.randomness import JUDGED, Role, uniforms


@dataclass(frozen=True)
class Drafts:
    """A round before its verdict: `tokens` (B, γ), drawn from `log_p` (B, γ, V).

    `draws` (B, roles, γ) are the uniforms, and `start` (B,) the positions of the first drafts in
    their responses. `log_q` computes the teacher's log-probabilities (b, γ, V) of requests with
    indices (b,). `forced` (B, γ) has forced ids, −1 for none; it is None
    if no request has any.
    """

    tokens: Tensor
    log_p: Tensor
    log_q: Callable[[Tensor], Tensor]
    draws: Tensor
    start: Tensor
    forced: Tensor | None


@dataclass(frozen=True)
class Emitted:
    """A round's proposed tokens (B, γ); each request emits its first `count` (B,).

    `records` has each request's records of its emitted tokens.
    """

    tokens: Tensor
    count: Tensor
    records: list[list[bytes]]


def verdict(orders: Sequence[Order], drafts: Drafts) -> Emitted:
    """Judge the drafts of B requests; see `rounds.judge`."""
    tokens = torch.empty_like(drafts.tokens)
    count = torch.empty_like(drafts.tokens[:, 0])
    records: list[list[bytes]] = [[] for _ in orders]
    for part in _parts(orders, drafts.log_p[0].numel()):
        order = orders[part[0]]
        at = torch.tensor(part, device=tokens.device)
        judged = _judge(order, drafts, at)
        tokens[at] = judged.tokens
        count[at] = judged.count
        for owner, record in _records(judged, order):
            records[part[owner]].append(record)
    return Emitted(tokens, count, records)


def _judge(order: Order, drafts: Drafts, at: Tensor) -> Round:
    """Judge some of the requests, all of one behavior."""
    draws = drafts.draws[at]
    judged = judge(
        order.behavior,
        drafts.tokens[at],
        drafts.log_p[at],
        drafts.log_q(at),
        draws[:, Role.ACCEPT],
        draws[:, Role.RESIDUAL],
        drafts.start[at],
    )
    if drafts.forced is None:
        return judged
    # A round of forced ids is emitted as a whole, however the verdict on it came out.
    given = drafts.forced[at]
    all_given = (given >= 0).all(-1)
    tokens = torch.where(all_given[:, None], given, judged.tokens)
    count = judged.count.masked_fill(all_given, tokens.shape[1])
    return replace(judged, tokens=tokens, count=count)


def _records(judged: Round, order: Order) -> Iterator[tuple[int, bytes]]:
    """Yield each emitted token's row in its part and its record, with one copy to the host."""
    length = judged.tokens.shape[1]
    emitted = torch.arange(length, device=judged.tokens.device) < judged.count[:, None]
    row, offset = emitted.nonzero(as_tuple=True)
    kept = kept_of(judged, row, offset, order.support)
    first = offset == 0  # a round is counted at its first token
    drafted = torch.where(first, length, 0)
    accepted = torch.where(first, judged.accepted[row], 0)
    words = pack(kept, drafted, accepted, row_type(order.behavior, order.support))
    host = torch.cat([row[:, None].int(), words], 1).cpu().numpy()
    for line in host:
        yield int(line[0]), line[1:].tobytes()


def _parts(orders: Sequence[Order], size: int) -> Iterator[list[int]]:
    """Yield groups of requests of one behavior and support, of at most JUDGED_AT_ONCE values.

    `size` is the number of values of one request.
    """
    groups: dict[Any, list[int]] = {}
    for index, order in enumerate(orders):
        groups.setdefault((order.behavior, order.support), []).append(index)
    most = max(1, JUDGED_AT_ONCE // size)
    for group in groups.values():
        for start in range(0, len(group), most):
            yield group[start : start + most]


def sampled(log_p: Tensor, uniform: Tensor, forced: Tensor | None) -> Tensor:
    """A sample (B,) of each distribution (B, V), or the forced id."""
    tokens = speculation.sample(log_p, uniform)
    return tokens if forced is None else torch.where(forced >= 0, forced, tokens)


def uniforms_of(order: Order, device: torch.device) -> Tensor:
    """All uniforms (roles, T) of a request, on the device; made once per request."""
    of_roles = [uniforms([order.key], role, order.max_tokens) for role in JUDGED]
    return torch.cat(of_roles).to(device, non_blocking=True)


class Randomness:
    """The uniforms of a batch of requests in one table, rebuilt only when the batch changes."""

    def __init__(self) -> None:
        self._of_requests: list[Tensor] = []
        self._table = torch.empty(0)  # (B, roles, T)
        self._last = torch.empty(0)  # (B,) the last position that each request can reach

    def draws(self, of_requests: list[Tensor], start: Sequence[int], length: int) -> Tensor:
        """Uniforms (B, roles, γ) of γ positions from `start` (B) on.

        Beyond a limit they repeat and are never used. `of_requests` are B tensors of `uniforms_of`,
        the same objects at each call.
        """
        device = of_requests[0].device
        if list(map(id, of_requests)) != list(map(id, self._of_requests)):
            rows = [uniform.T for uniform in of_requests]
            self._table = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).transpose(1, 2)
            last = torch.tensor([uniform.shape[1] - 1 for uniform in of_requests])
            self._last = last.to(device, non_blocking=True)
            self._of_requests = of_requests
        begin = torch.tensor(start).to(device, non_blocking=True)
        positions = begin[:, None] + torch.arange(length, device=device)
        positions = torch.minimum(positions, self._last[:, None])
        return self._table.gather(2, positions[:, None].expand(-1, len(JUDGED), -1))


def forced_ids(
    orders: Sequence[Order], start: Sequence[int], length: int, device: torch.device
) -> Tensor | None:
    """The forced ids (B, γ) from `start` (B) on, −1 for none; None if no request has any."""
    if not any(order.forced for order in orders):
        return None
    ids = torch.full((len(orders), length), -1)
    for row, order in enumerate(orders):
        given = order.forced[start[row] :][:length]
        ids[row, : len(given)] = torch.tensor(given, dtype=torch.int64)
    return ids.to(device)
