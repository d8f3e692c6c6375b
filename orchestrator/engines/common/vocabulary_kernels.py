"""Reads logits on a GPU in one pass, where torch's operations take fourteen passes and more.

One Triton kernel reads the vocabulary in blocks, and writes of each block its largest logit, the
sum of its masses and its most probable ids. A second one has a program for each row, adds the blocks
up, and either draws a token, from a block and then in it, or computes the teacher's statistics. None
waits for the host.

The law and the uniforms are those of `policy.vocabulary`, `policy.laws` and `policy.speculation`,
which stay the reference. Masses are float32 and their sums float64, as there. The drawn id is the
first whose cumulative mass exceeds u · total; an id without mass is never drawn, and where rounding
leaves no such id, the last id with mass is. Sums have another order than torch's and masses are
rounded elsewhere, so that a uniform that falls next to a border, within about 1e-8 of it, may draw
the neighbour. Of equal logits the lowest ids are the most probable ones.

Never run on a GPU: tested in Triton's interpreter, and compiled for GPUs that were not there.

Shapes: B requests, N prefixes, V vocabulary rows, K support ids.
"""

# pyright: reportMissingImports=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from orchestrator.engines.interface import Owner
from orchestrator.engines.memory import KERNEL_BLOCK
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.rollouts import TeacherScores

WARPS = 8
NO_MASS = tl.constexpr(float("-inf"))
NO_KEY = tl.constexpr(-(2**63))


def draw(
    logits: Tensor,
    space: TokenSpace,
    owner: Owner,
    tau: float,
    support: int,
    keys: Tensor,
    positions: Tensor,
    forced: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Tokens (B,) and int32 words (B, 3 + K) of their records, from logits (B, V).

    A record is the token, the bits of log p and log μ, and K ids (`plain_row_type`). `keys` (B, 2)
    are seed and prompt length of each request, `positions` (B,) those of the last fed tokens.
    `forced` (B, F) are ids of the first F positions of each response, −1 for none.
    """
    rows = len(logits)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    words = torch.empty(rows, 3 + support, dtype=torch.int32, device=logits.device)
    read, options = _read(logits, space, owner, tau, support)
    _draw_rows[(rows,)](
        *read,
        keys,
        positions,
        positions if forced is None else forced,
        0 if forced is None else forced.shape[1],
        tokens,
        words,
        **options,
        TEMPERED=tau != 1,
    )
    return tokens, words


def teacher_statistics(
    logits: Tensor, space: TokenSpace, tokens: Tensor, support: Tensor
) -> TeacherScores:
    """`rounds.teacher_statistics` from the teacher's logits (N, V)."""
    rows, count = support.shape
    on_support = torch.empty(rows, count, device=logits.device)
    of_token, entropy, overlap = torch.empty(3, rows, device=logits.device)
    if rows:
        read, options = _read(logits, space, "teacher", 1.0, count, entropy=True)
        made = (on_support, of_token, entropy, overlap)
        options["SUPPORT"] = triton.next_power_of_2(count)
        _score_rows[(rows,)](*read, tokens, support, *made, **options)
    return TeacherScores(on_support, of_token, entropy, overlap)


def _read(
    logits: Tensor, space: TokenSpace, owner: Owner, tau: float, support: int, entropy: bool = False
) -> tuple[tuple[Any, ...], dict[str, int]]:
    """Read all blocks; returns arguments and options of the kernel that goes on with them."""
    rows, width = len(logits), min(logits.shape[1], space.rows or logits.shape[1])
    device = logits.device
    block = min(KERNEL_BLOCK, triton.next_power_of_2(width))
    blocks = triton.cdiv(width, block)
    merged = space.others + (space.teachers if owner == "teacher" else ())
    masked = space.teachers if owner == "student" else ()
    stops = _on_device((space.emitted, *merged, *masked), device)
    maxima = torch.empty(rows, blocks, device=device)
    sums = torch.empty(rows, blocks, dtype=torch.float64, device=device)
    second = torch.empty_like(sums) if entropy or tau != 1 else sums
    best = torch.empty(rows, blocks, support, dtype=torch.int64, device=device)
    read = (logits, logits.stride(0), width, space.valid, stops, tau)
    read = (*read, maxima, sums, second, best, support, blocks)
    options = {
        "MERGED": len(merged),
        "MASKED": len(masked),
        "BLOCK": block,
        "num_warps": WARPS,
    }
    _read_blocks[rows, blocks](*read, **options, TEMPERED=tau != 1, ENTROPY=entropy)
    options["BLOCKS"] = triton.next_power_of_2(blocks)
    options["CANDIDATES"] = triton.next_power_of_2(max(1, blocks * support))
    return read, options


_stops: dict[Any, Tensor] = {}


def _on_device(ids: tuple[int, ...], device: torch.device) -> Tensor:
    """A few ids on the device, copied there once."""
    key = ids, str(device)
    if key not in _stops:
        _stops[key] = torch.tensor(ids, dtype=torch.int64).to(device)
    return _stops[key]


@triton.jit
def _stop_logit(row, valid, stops, MERGED: tl.constexpr):
    """The logit of the stop event: all mass of the emitted id and of the merged ones."""
    number = tl.load(stops)
    stop = tl.load(row + number, mask=number < valid, other=NO_MASS).to(tl.float32)
    for index in tl.static_range(MERGED):
        number = tl.load(stops + 1 + index)
        other = tl.load(row + number, mask=number < valid, other=NO_MASS).to(tl.float32)
        high = tl.maximum(stop, other)
        low = tl.minimum(stop, other)
        stop = tl.where(low == NO_MASS, high, high + tl.log(1.0 + tl.exp(low - high)))
    return stop


@triton.jit
def _logits_at(row, ids, valid, stops, MERGED: tl.constexpr, MASKED: tl.constexpr):
    """Logits of `ids` in the token space, in float32; −∞ of padding and of masked ids."""
    logits = tl.load(row + ids, mask=ids < valid, other=NO_MASS).to(tl.float32)
    if MERGED > 0:
        logits = tl.where(ids == tl.load(stops), _stop_logit(row, valid, stops, MERGED), logits)
    for index in tl.static_range(MERGED + MASKED):
        logits = tl.where(ids == tl.load(stops + 1 + index), NO_MASS, logits)
    return logits


@triton.jit
def _masses(logits, high, tau, TEMPERED: tl.constexpr):
    """exp of the distances from the largest logit, by `tau`; 0 for a block without mass."""
    apart = logits - tl.where(high == NO_MASS, 0.0, high)
    if TEMPERED:
        apart = apart / tau
    return tl.exp(apart).to(tl.float64)


@triton.jit
def _ranked(logits, ids, width):
    """Integers in the order of the logits, of equal ones in that of falling ids."""
    bits = logits.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ranked = (ordered.to(tl.int64) << 32) + (2147483647 - ids.to(tl.int64))
    return tl.where(ids < width, ranked, NO_KEY)


@triton.jit
def _id_of(ranked):
    """The id in an integer of `_ranked`."""
    return 2147483647 - (ranked & 2147483647)


@triton.jit
def _candidates(best, number, count, CANDIDATES: tl.constexpr):
    """The most probable ids of all blocks of a row, as `_ranked` orders them."""
    places = tl.arange(0, CANDIDATES)
    return tl.load(best + number * count + places, mask=places < count, other=NO_KEY)


@triton.jit
def _uniform(seed, position):
    """`keyed_uniforms` of one request."""
    state = seed.to(tl.uint64) + position.to(tl.uint64) * 0x9E3779B97F4A7C15
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    state = state ^ (state >> 31)
    return (state >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16  # 2⁻⁵³


@triton.jit
def _first_above(cumulative, masses, point, places, SIZE: tl.constexpr):
    """The first place with mass whose cumulative mass exceeds the point, else the last with mass."""
    has_mass = masses > 0
    first = tl.min(tl.where((cumulative > point) & has_mass, places, SIZE), 0)
    last = tl.max(tl.where(has_mass, places, 0), 0)
    return tl.where(first < SIZE, first, last)


@triton.jit
def _read_blocks(
    logits, stride, width, valid, stops, tau,
    maxima, sums, second, best, support, blocks,
    MERGED: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
    TEMPERED: tl.constexpr, ENTROPY: tl.constexpr,
):  # fmt: skip
    """Write largest logit, masses and most probable ids of one block of one row.

    `second` gets the tempered masses, or Σ of mass × distance from the largest logit.
    """
    block = tl.program_id(1)
    place = tl.program_id(0).to(tl.int64) * blocks + block
    row = logits + tl.program_id(0).to(tl.int64) * stride
    ids = block * BLOCK + tl.arange(0, BLOCK)
    own = _logits_at(row, ids, valid, stops, MERGED, MASKED)
    high = tl.max(own, 0)
    tl.store(maxima + place, high)
    tl.store(sums + place, tl.sum(_masses(own, high, tau, False), 0))
    if TEMPERED:
        tl.store(second + place, tl.sum(_masses(own, high, tau, True), 0))
    if ENTROPY:
        masses = _masses(own, high, tau, False)
        distances = tl.where(masses > 0, own - high, 0.0).to(tl.float64)
        tl.store(second + place, tl.sum(masses * distances, 0))
    ranked = _ranked(own, ids, width)
    for rank in range(support):
        largest = tl.max(ranked, 0)
        tl.store(best + place * support + rank, largest)
        ranked = tl.where(ranked == largest, NO_KEY, ranked)


@triton.jit(do_not_specialize=["forced_width"])
def _draw_rows(
    logits, stride, width, valid, stops, tau,
    maxima, sums, second, best, support, blocks,
    keys, positions, forced, forced_width, tokens, words,
    MERGED: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, CANDIDATES: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    """Draw one row's token and write its record, from what `_read_blocks` wrote."""
    number = tl.program_id(0).to(tl.int64)
    row = logits + number * stride
    each = tl.arange(0, BLOCKS)
    there = each < blocks
    highs = tl.load(maxima + number * blocks + each, mask=there, other=NO_MASS)
    high = tl.max(highs, 0)
    apart = tl.where(highs == NO_MASS, NO_MASS, highs - high).to(tl.float64)
    masses = tl.load(sums + number * blocks + each, mask=there, other=0.0) * tl.exp(apart)
    log_total = tl.log(tl.sum(masses, 0)).to(tl.float32)
    if TEMPERED:
        apart = apart / tau
        masses = tl.load(second + number * blocks + each, mask=there, other=0.0) * tl.exp(apart)
    total = tl.sum(masses, 0)

    position = tl.load(positions + number) - tl.load(keys + 2 * number + 1) + 1
    point = _uniform(tl.load(keys + 2 * number), position) * total
    chosen = _first_above(tl.cumsum(masses, 0), masses, point, each, BLOCKS)
    before = tl.sum(tl.where(each < chosen, masses, 0.0), 0)
    inside = tl.arange(0, BLOCK)
    own = _logits_at(row, chosen * BLOCK + inside, valid, stops, MERGED, MASKED)
    scale = tl.sum(tl.where(each == chosen, tl.exp(apart), 0.0), 0)
    within = _masses(own, tl.max(own, 0), tau, TEMPERED) * scale
    # Sums in another order than the blocks' may place the point a little before the block.
    left = tl.maximum(point - before, 0.0)
    token = chosen * BLOCK + _first_above(tl.cumsum(within, 0), within, left, inside, BLOCK)
    token = tl.minimum(token, width - 1).to(tl.int64)
    if forced_width > 0:
        asked = (position >= 0) & (position < forced_width)
        given = tl.load(forced + number * forced_width + position, mask=asked, other=-1)
        token = tl.where(given >= 0, given, token)

    distance = _logits_at(row, token, valid, stops, MERGED, MASKED) - high
    log_p = distance - log_total
    log_mu = log_p
    if TEMPERED:
        log_mu = (distance.to(tl.float64) / tau - tl.log(total)).to(tl.float32)
    tl.store(tokens + number, token)
    record = words + number * (3 + support)
    tl.store(record, token.to(tl.int32))
    tl.store(record + 1, log_p.to(tl.int32, bitcast=True))
    tl.store(record + 2, log_mu.to(tl.int32, bitcast=True))
    ranked = _candidates(best, number, blocks * support, CANDIDATES)
    for rank in range(support):
        largest = tl.max(ranked, 0)
        tl.store(record + 3 + rank, _id_of(largest).to(tl.int32))
        ranked = tl.where(ranked == largest, NO_KEY, ranked)


@triton.jit
def _score_rows(
    logits, stride, width, valid, stops, tau,
    maxima, sums, second, best, support, blocks,
    tokens, ids, on_support, of_token, entropy, overlap,
    MERGED: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, CANDIDATES: tl.constexpr, SUPPORT: tl.constexpr,
):  # fmt: skip
    """Write one row's statistics of the teacher, from what `_read_blocks` wrote."""
    number = tl.program_id(0).to(tl.int64)
    row = logits + number * stride
    each = tl.arange(0, BLOCKS)
    there = each < blocks
    highs = tl.load(maxima + number * blocks + each, mask=there, other=NO_MASS)
    high = tl.max(highs, 0)
    has_mass = highs != NO_MASS
    apart = tl.where(has_mass, highs - high, 0.0).to(tl.float64)
    scale = tl.where(has_mass, tl.exp(apart), 0.0)
    of_blocks = tl.load(sums + number * blocks + each, mask=there, other=0.0)
    total = tl.sum(of_blocks * scale, 0)
    log_total = tl.log(total)
    weighted = tl.load(second + number * blocks + each, mask=there, other=0.0)
    # −Σ q·log q, where log q is the distance from the largest logit less log of the total.
    weighted = tl.sum((weighted + of_blocks * apart) * scale, 0)
    tl.store(entropy + number, (log_total - weighted / total).to(tl.float32))

    token = _logits_at(row, tl.load(tokens + number), valid, stops, MERGED, MASKED)
    tl.store(of_token + number, token - high - log_total.to(tl.float32))
    places = tl.arange(0, SUPPORT)
    inside = places < support
    wanted = tl.load(ids + number * support + places, mask=inside, other=2147483647)
    read = _logits_at(row, wanted, valid, stops, MERGED, MASKED)
    log_q = read - high - log_total.to(tl.float32)
    tl.store(on_support + number * support + places, log_q, mask=inside)
    ranked = _candidates(best, number, blocks * support, CANDIDATES)
    shared = 0
    for _ in range(support):
        largest = tl.max(ranked, 0)
        own = _id_of(largest)
        shared += tl.sum(((wanted == own) & inside).to(tl.int32), 0)
        ranked = tl.where(ranked == largest, NO_KEY, ranked)
    tl.store(overlap + number, 1.0 * shared / support)
