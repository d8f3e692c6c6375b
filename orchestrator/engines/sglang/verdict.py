"""Draws tokens from the logits of an engine, and judges rounds of drafts. No SGLang.

A drawn token comes back with a record of its values for the rollout. Logits are read in the setup's
token space, as the torch engine does.

A round is judged in parts that fit beside the caches. The student's distributions of a whole round
exist at once, because its drafts were drawn from them. The teacher's distributions, and the solver's
temporaries, are made for a part of the requests at a time, from hidden states. Each part ends in one
copy to the host.

Shapes: B requests, γ drafts, V vocabulary rows, K support ids, N emitted positions of a part.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from orchestrator.engines.common.rounds import Round, judge, kept_of
from orchestrator.engines.interface import Owner
from orchestrator.engines.memory import JUDGED_AT_ONCE, KERNEL_IDS, SAMPLED_AT_ONCE
from orchestrator.engines.sglang.blending_rows import (
    Order,
    agreed,
    pack,
    plain_row_type,
    row_type,
    words_of,
)
from orchestrator.engines.sglang.process import ROWS
from orchestrator.policy import laws, speculation
from orchestrator.policy.randomness import JUDGED, Role, uniforms
from orchestrator.policy.spec import Student, Tempered
from orchestrator.policy.vocabulary import TokenSpace

# Variable for SGLang's processes, in JSON: valid ids, stop ids of student and teacher, owner.
SPACE = "TRB_SGLANG_SPACE"
KERNEL = "TRB_SGLANG_KERNEL"  # variable for the same: set to anything, Triton draws

_space: list[tuple[TokenSpace, Owner]] = []  # this process's token space, parsed from SPACE

# --- draws tokens from logits ---


class Fetched:
    """Records (B, W) of int32 words on their way to the host, read as the bytes of each row.

    The first row that is read waits for the copy.
    """

    def __init__(self, words: Tensor):
        self._event = None
        if words.is_cuda:
            self._host = words.to("cpu", non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host = words
        self._rows: list[bytes] | None = None

    def __getitem__(self, row: int) -> bytes:
        if self._rows is None:
            if self._event is not None:
                self._event.synchronize()
            size = 4 * self._host.shape[1]
            data = self._host.numpy().tobytes()
            self._rows = [data[start : start + size] for start in range(0, len(data), size)]
        return self._rows[row]


def keyed_uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """float64 uniforms (B,) in [0, 1) from int64 seeds and positions.

    SplitMix64 (Steele et al. 2014). Products and sums wrap around like unsigned words; a mask makes
    shifts logical.
    """

    def shifted(words: Tensor, by: int) -> Tensor:
        return (words >> by) & ((1 << (64 - by)) - 1)

    state = seeds + positions * -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed word
    state = (state ^ shifted(state, 30)) * -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
    state = (state ^ shifted(state, 27)) * -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
    state = state ^ shifted(state, 31)
    return shifted(state, 11).double() * 2.0**-53


def token_space() -> tuple[TokenSpace, Owner]:
    """This engine's token space, and the owner of its model."""
    if not _space:
        valid, student_eos, teacher_eos, owner = json.loads(os.environ[SPACE])
        assert owner in ("student", "teacher")
        _space.append((TokenSpace(valid, student_eos, teacher_eos), owner))
    return _space[0]


def draw_tokens(
    logits: Tensor, draws: list[dict[str, Any]], positions: Tensor, shards: Any = None
) -> tuple[Tensor, dict[str, Fetched]]:
    """The next token (B,) of each request, and its record, from logits (B, V).

    `draws` are the fields of `Draw`, `positions` (B,) the positions of the last fed tokens, and
    `shards` the process group of a sharded engine. Only forced tokens wait for the device, and
    those only where torch draws.
    """
    if os.environ.get(KERNEL) and draws[0]["support"] <= KERNEL_IDS:
        return _draw_by_kernel(logits, draws, positions)
    rows = max(1, SAMPLED_AT_ONCE // logits.shape[1])
    tokens, words = [], []
    for start in range(0, len(logits), rows):
        part = slice(start, start + rows)
        drawn = _draw_part(logits[part], draws[part], positions[part], shards)
        tokens.append(drawn[0])
        words.append(drawn[1])
    return torch.cat(tokens), {ROWS: Fetched(torch.cat(words))}


def _draw_by_kernel(
    logits: Tensor, draws: list[dict[str, Any]], positions: Tensor
) -> tuple[Tensor, dict[str, Fetched]]:
    """Do the same in Triton, in an engine without shards."""
    from orchestrator.engines.common import vocabulary_kernels

    space, owner = token_space()
    forced = None
    if any(draw["forced"] for draw in draws):
        ids = [torch.tensor(draw["forced"], dtype=torch.int64) for draw in draws]
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-1)
        forced = padded.to(logits.device, non_blocking=True)
    tokens, words = vocabulary_kernels.draw(
        logits,
        space,
        owner,
        draws[0]["tau"],
        draws[0]["support"],
        _keys(draws, logits.device),
        positions,
        forced,
    )
    return tokens, {ROWS: Fetched(words)}


def _keys(draws: list[dict[str, Any]], device: torch.device) -> Tensor:
    """Seed and length of the prompt of each request (B, 2), in one copy to the device."""
    keys = torch.tensor([(draw["seed"], draw["prompt"]) for draw in draws])
    return keys.to(device, non_blocking=True)


def _draw_part(
    logits: Tensor, draws: list[dict[str, Any]], positions: Tensor, shards: Any
) -> tuple[Tensor, Tensor]:
    """Tokens (b,) of a part of a batch, and words (b, W) of their records (`plain_row_type`)."""
    space, owner = token_space()
    log_p = space.student_log_prob(logits) if owner == "student" else space.teacher_log_prob(logits)
    tau = draws[0]["tau"]  # requests decoded together come from one call and one behavior
    log_mu = laws.law(Student() if tau == 1 else Tempered(tau), log_p, None).log_mu
    keys = _keys(draws, logits.device)
    # Uniforms belong to positions of the response, so that a retracted request repeats none.
    responses = positions - keys[:, 1] + 1
    tokens = speculation.sample(log_mu, keyed_uniforms(keys[:, 0], responses))
    if shards is not None:
        tokens = agreed(tokens, shards)
    if any(draw["forced"] for draw in draws):
        for row, (draw, position) in enumerate(zip(draws, responses.tolist(), strict=True)):
            if position < len(draw["forced"]):
                tokens[row] = draw["forced"][position]
    values = {
        "token": tokens,
        "student": speculation.log_prob_of(tokens, log_p),
        "behavior": speculation.log_prob_of(tokens, log_mu),
    }
    support = draws[0]["support"]
    if support:
        values["support_ids"] = log_p.topk(support, dim=-1).indices
    return tokens, words_of(values, plain_row_type(support))


# --- judges rounds of drafts ---


@dataclass(frozen=True)
class Drafts:
    """A round before its verdict: `tokens` (B, γ), drawn from `log_p` (B, γ, V).

    `draws` (B, roles, γ) are the uniforms. `log_q` computes the teacher's log-probabilities
    (b, γ, V) of requests with indices (b,). `forced` (B, γ) has forced ids, −1 for none; it is None
    if no request has any.
    """

    tokens: Tensor
    log_p: Tensor
    log_q: Callable[[Tensor], Tensor]
    draws: Tensor
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
