"""Batched decoding on transformers models: the student alone, or with drafts judged by the teacher.

In a blended round the student drafts γ tokens, and one teacher pass over the γ prefixes gives all
of its distributions. Each draft is accepted or redrawn, so that emitted tokens have the behavior's
law exactly (`policy.speculation`); tokens after a rejected draft are dropped. γ = 1 is lockstep
decoding, the reference. The next round samples the token after γ accepted drafts, which saves a
student distribution. Rows advance at their own pace and leave the batch as they finish. The same
passes give the teacher's targets for the loss.

Shapes: B active rows, γ drafts, V vocabulary rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from transformers import Cache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

from orchestrator.engines.common.causal import CausalModel
from orchestrator.engines.common.rounds import Record, Round, judge, kept_of
from orchestrator.engines.memory import LONGEST_ROUND, slots_of
from orchestrator.errors import NotFinite
from orchestrator.liveness import heartbeat
from orchestrator.policy import laws, speculation
from orchestrator.policy.randomness import JUDGED, Role, uniforms
from orchestrator.policy.spec import Behavior
from orchestrator.rollouts import Request, Rollouts

# --- keys and values of a model's layers in buffers that grow by blocks, so that appending is cheap ---
#
# A transformers cache copies all keys and values for each new token; these buffers copy only the new
# ones.
#
# Shapes: B rows, G key-value heads, L slots in use, D head dimension.


BLOCK = 16  # slots; a buffer grows by one block, or by a quarter where that is more


class SlotLayer(DynamicLayer):
    """One layer: `keys` and `values` (B, G, L, D) are views of the slots in use."""

    def __init__(self) -> None:
        super().__init__()
        self._buffers: list[Tensor] = []
        self._width = 0
        self._reserved = 0  # slots to allocate at once

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, G, n, D); returns all of them so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        width = self._width + key_states.shape[2]
        if not self._buffers or width > self._buffers[0].shape[2]:
            self._grow((key_states, value_states), width)
        keys, values = self._buffers
        keys[:, :, self._width : width] = key_states
        values[:, :, self._width : width] = value_states
        self._use(width)
        return cast(Tensor, self.keys), cast(Tensor, self.values)

    def crop(self, max_length: int) -> None:
        """Forget the last −`max_length` slots."""
        assert max_length < 0
        self._use(self._width + max_length)

    def keep(self, rows: Tensor) -> None:
        """Keep `rows` (int64 indices), which may repeat."""
        self._buffers = [buffer[rows] for buffer in self._buffers]
        if self._buffers:
            self._use(self._width)

    def reorder(self, order: Tensor) -> None:
        """Keep the slots `order` (B, n) of each row, in that order."""
        index = order[:, None, :, None]
        for buffer in self._buffers:
            # `gather` copies before the slots are overwritten.
            moved = buffer.gather(2, index.expand(-1, buffer.shape[1], -1, buffer.shape[3]))
            buffer[:, :, : order.shape[1]] = moved
        self._use(order.shape[1])

    def reserve(self, slots: int) -> None:
        """Allocate `slots` now: the buffers do not grow up to that number."""
        self._reserved = slots
        if self._buffers and self._buffers[0].shape[2] < slots:
            self._grow((self._buffers[0], self._buffers[1]), self._width)
            self._use(self._width)  # frees the old buffers

    def _grow(self, fresh: tuple[Tensor, Tensor], width: int) -> None:
        """Make buffers for `width` slots: the reservation, or with spare slots, to grow rarely.

        `fresh` are keys and values of the shape and dtype of the buffers.
        """
        capacity = self._reserved if width <= self._reserved else width + max(BLOCK, width // 4)
        grown: list[Tensor] = []
        for index, states in enumerate(fresh):
            rows, groups, _, size = states.shape
            buffer = states.new_empty(rows, groups, capacity, size)
            if self._buffers:
                buffer[:, :, : self._width] = self._buffers[index][:, :, : self._width]
            grown.append(buffer)
        self._buffers = grown

    def _use(self, width: int) -> None:
        keys, values = self._buffers
        self._width = width
        self.keys = keys[:, :, :width]
        self.values = values[:, :, :width]


def windows(config: PretrainedConfig) -> dict[str, int | None]:
    """The positions that a token sees, its own included, in layers of each kind; None for all.

    Raises ValueError for layers without keys and values of each token, such as recurrent ones.
    """
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or [])
    if not kinds:
        return {"": window}
    if not kinds <= {"full_attention", "sliding_attention"}:
        raise ValueError(
            f"layer_types {sorted(kinds)}; only full_attention and sliding_attention can be "
            "decoded in drafts"
        )
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}


class SlotCache(Cache):
    """A transformers cache of `SlotLayer`s; the caller's masks hide what lies before a window."""

    def __init__(self, config: PretrainedConfig):
        self._slots = [SlotLayer() for _ in range(config.num_hidden_layers)]
        super().__init__(layers=list(self._slots))

    def keep(self, rows: Tensor) -> None:
        """Keep `rows` (int64 indices), which may repeat."""
        for layer in self._slots:
            layer.keep(rows)

    def reserve(self, slots: int) -> None:
        """Allocate `slots` in every layer now; see `SlotLayer.reserve`."""
        for layer in self._slots:
            layer.reserve(slots)

    def reorder(self, order: Tensor) -> None:
        """Keep the slots `order` (B, n) of each row, in that order."""
        for layer in self._slots:
            layer.reorder(order)


# --- one model's KV cache for a batch of sequences in decoding, with slots that can be taken back ---
#
# A stream holds all tokens of a row but its last, the pending one. Feeding the pending token and
# drafts after it gives the distributions at those prefixes. Slots of rejected drafts are masked, and
# the cache is compacted when too many slots are dead.
#
# Shapes: B rows, n fed tokens, L cache slots, V vocabulary rows.


DEAD_SHARE = 0.25  # of the slots; beyond it a compaction costs less than attending over them


class Stream:
    """One model's view of the batch. Positions are explicit: masked slots shift no later tokens.

    With `slots`, the cache has this size in each row from the beginning, and is compacted before it
    would grow.
    """

    def __init__(
        self, causal: CausalModel, prompts: list[tuple[int, ...]], slots: int | None = None
    ):
        self._causal = causal
        self._slots = slots
        self._windows = windows(causal.model.config)
        self._cache = SlotCache(causal.model.config)
        # Samples of one prompt share its pass: only distinct prompts are rows at first.
        held = [prompt[:-1] for prompt in prompts]
        distinct = list(dict.fromkeys(held))
        width = max(map(len, held))
        ids = torch.zeros(len(distinct), width, dtype=torch.long)
        live = torch.zeros_like(ids)
        row_of: dict[tuple[int, ...], int] = {}
        for row, tokens in enumerate(distinct):
            # Padded on the left, so that the next tokens of all rows share a column.
            ids[row, width - len(tokens) :] = torch.tensor(tokens, dtype=torch.long)
            live[row, width - len(tokens) :] = 1
            row_of[tokens] = row
        self._live = live.to(causal.device)
        # The logits of this pass are not read: the last prompt token is fed later.
        if width:
            self._forward(ids.to(causal.device), (self._live.cumsum(-1) - 1).clamp_min(0), logits=1)
        self.keep(torch.tensor([row_of[tokens] for tokens in held], device=causal.device))
        if slots is not None:
            self._cache.reserve(slots)

    def feed(self, tokens: Tensor) -> Tensor:
        """Append n tokens (B, n) to every row; returns log-probabilities (B, n, V) after each."""
        rows, count = tokens.shape
        if self._slots is not None and self._live.shape[1] + count > self._slots:
            self._compact()
        start = self._live.sum(-1, keepdim=True)
        positions = start + torch.arange(count, device=tokens.device)
        self._live = torch.cat([self._live, self._live.new_ones(rows, count)], -1)
        return self._causal.log_prob(self._forward(tokens, positions, logits=count))

    def take_back(self, fed: int, kept: Tensor) -> None:
        """Of the last `fed` tokens of each row, keep the first `kept` (B,), at least one."""
        unused = fed - int(kept.max())
        if unused:
            self._cache.crop(-unused)
            self._live = self._live[:, :-unused]
        # The last `unused` slots are unused in every row, and cut off. Rows that keep fewer than
        # the longest have dead slots between their tokens: these are masked until compaction pays.
        columns = torch.arange(fed - unused, device=kept.device)
        self._live[:, self._live.shape[1] - (fed - unused) :] = (columns < kept[:, None]).long()
        if float((self._live == 0).float().mean()) > DEAD_SHARE:
            self._compact()

    def keep(self, rows: Tensor) -> None:
        """Keep `rows` (int64 indices), which may repeat."""
        self._cache.keep(rows)
        self._live = self._live[rows]

    def _compact(self) -> None:
        """Move each row's live slots to the right, in order, and drop the columns that no row uses."""
        width = int(self._live.sum(-1).max())
        # A stable sort of 0s and 1s puts the live slots last and leaves them in their order.
        order = self._live.argsort(dim=-1, stable=True)[:, -width:]
        if width == self._live.shape[1]:
            return
        self._live = self._live.gather(1, order)
        self._cache.reorder(order)

    def _forward(self, ids: Tensor, positions: Tensor, logits: int) -> Tensor:
        """Logits (B, `logits`, V) of the last positions."""
        hidden = self._causal.hidden(
            ids,
            self._masks(ids.shape[1]),
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        return self._causal.head(hidden[:, -logits:])

    def _masks(self, fed: int) -> Tensor | dict[str, Tensor]:
        """The mask of the last `fed` tokens; one for each kind of layer if there are two."""
        visible = self._visible(fed)
        masks: dict[str, Tensor] = {}
        for kind, window in self._windows.items():
            masks[kind] = visible
            if window is not None and window < self._live.shape[1]:
                positions = self._live.cumsum(-1)
                distance = positions[:, -fed:, None] - positions[:, None, :]
                masks[kind] = visible & (distance < window)[:, None]
        return masks if len(masks) > 1 else masks.popitem()[1]

    def _visible(self, fed: int) -> Tensor:
        """Slots that the last `fed` tokens attend to: live ones up to their own, (B, 1, fed, L) bool.

        A token always sees itself: padding without any visible slot would get NaN keys and values.
        """
        live = self._live.bool()[:, None, None, :]
        if fed == 1:
            return live
        slots = torch.arange(self._live.shape[1], device=self._live.device)
        own = slots[-fed:, None]
        return (live & (slots <= own)) | (slots == own)


# --- batched decoding on transformers models: the student alone, or with drafts judged by the teacher ---


@dataclass(frozen=True)
class Decoding:
    """Limits of one decoding call."""

    max_tokens: int
    top_k: int = 0  # support size; 0 records no support (evaluation)
    draft_length: int = 1  # γ of behaviors that need the teacher


@torch.no_grad()
def generate(
    student: CausalModel,
    teacher: CausalModel | None,
    requests: list[Request],
    behavior: Behavior,
    decoding: Decoding,
) -> Rollouts:
    """One response to every request, sampled from `behavior`."""
    batch = _Batch(student, teacher if behavior.needs_teacher else None, requests, decoding)
    while len(batch.rows):
        if behavior.needs_teacher:
            batch.advance(batch.blended_round(behavior))
        else:
            batch.advance(batch.student_round(behavior))
        heartbeat.advance()
    return batch.record.finish(requests, student.space.emitted, blended=behavior.needs_teacher)


@torch.no_grad()
def read_in_drafts(causal: CausalModel, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """log p of each id but the first of sequences of one length, LONGEST_ROUND ids in a pass."""
    stream = Stream(causal, [tuple(ids[:1]) for ids in sequences])
    ids_BL = torch.tensor([list(ids) for ids in sequences], device=causal.device)
    parts: list[Tensor] = []
    for fed, following in zip(
        ids_BL[:, :-1].split(LONGEST_ROUND, 1), ids_BL[:, 1:].split(LONGEST_ROUND, 1), strict=True
    ):
        parts.append(stream.feed(fed).gather(-1, following[..., None])[..., 0])
    return torch.cat(parts, 1).tolist()


class _Batch:
    """The rows that are still being decoded."""

    def __init__(
        self,
        student: CausalModel,
        teacher: CausalModel | None,
        requests: list[Request],
        decoding: Decoding,
    ):
        self._eos = student.space.emitted
        self._decoding = decoding
        prompts = [request.prompt_ids for request in requests]
        keys = [request.key for request in requests]
        device = student.device
        # Without a teacher each draft is emitted, so that no uniform decides about it.
        roles = JUDGED if teacher is not None else (Role.DRAFT,)
        self._draws = {role: uniforms(keys, role, decoding.max_tokens).to(device) for role in roles}
        self._sampler = student.owner  # "teacher" if the teacher answers prompts itself
        slots = None
        if device.type == "cuda":
            # The budget grants full-length sequences: the buffers get their last size at once.
            drafted = decoding.draft_length if teacher is not None else 1
            slots = slots_of(max(map(len, prompts)) + decoding.max_tokens, drafted)
        self._student = Stream(student, prompts, slots)
        self._teacher = Stream(teacher, prompts, slots) if teacher is not None else None
        self._pending = torch.tensor([prompt[-1] for prompt in prompts], device=device)
        self.rows = torch.arange(len(requests), device=device)
        self.record = Record(len(requests), decoding.max_tokens, device)

    def student_round(self, behavior: Behavior) -> Round:
        """Sample one token of each row from the behavior's law."""
        log_p = self._student.feed(self._pending[:, None])
        self._check(log_p, self._sampler)
        law = laws.law(behavior, log_p[:, 0], None)
        tokens = speculation.sample(law.log_mu, self._uniforms(Role.DRAFT, 1)[:, 0])
        return Round(
            tokens=tokens[:, None],
            count=torch.ones_like(tokens),
            accepted=torch.zeros_like(tokens),
            log_p=log_p,
            log_mu=law.log_mu[:, None],
            log_q=None,
            measured={},
        )

    def blended_round(self, behavior: Behavior) -> Round:
        """Up to γ tokens of each row: student drafts, one teacher pass, one verification."""
        assert self._teacher is not None
        # Drafts beyond the length limit of the shortest row are of use to no row.
        left = self._decoding.max_tokens - int(self._positions().min())
        length = min(self._decoding.draft_length, left)
        drafts, log_p = self._draft(length)
        self._check(log_p, self._sampler)
        # The teacher reads the prefixes of all drafts: the pending token, then all drafts but the
        # last.
        log_q = self._teacher.feed(torch.cat([self._pending[:, None], drafts[:, :-1]], 1))
        self._check(log_q, "teacher")
        accept = self._uniforms(Role.ACCEPT, length)
        residual = self._uniforms(Role.RESIDUAL, length)
        judged = judge(behavior, drafts, log_p, log_q, accept, residual)
        self.record.count(self.rows, rounds=1, drafted=length, accepted=judged.accepted)
        return judged

    def advance(self, done: Round) -> None:
        """Record the emitted tokens of a round, take back the others, and drop finished rows."""
        fed = done.tokens.shape[1]
        offsets = torch.arange(fed, device=self.rows.device)
        # A row emits its proposed tokens up to the length limit, and none after an EOS.
        count = torch.minimum(done.count, self._decoding.max_tokens - self._positions())
        stops = (done.tokens == self._eos) & (offsets < count[:, None])
        ended = stops.any(-1)
        count = torch.where(ended, stops.long().argmax(-1) + 1, count)
        emitted = offsets < count[:, None]
        row, offset = emitted.nonzero(as_tuple=True)
        kept = kept_of(done, row, offset, self._decoding.top_k)
        self.record.add(self.rows[row], self._positions()[row] + offset, kept)
        self.record.lengths[self.rows] += count
        last = done.tokens.gather(1, count[:, None] - 1)[:, 0]
        alive = (~ended & (self._positions() < self._decoding.max_tokens)).nonzero()[:, 0]
        some_finished = len(alive) < len(self.rows)
        self.rows = self.rows[alive]
        self._pending = last[alive]
        for stream in (self._student, self._teacher):
            if stream is not None and len(alive):
                if some_finished:  # `keep` copies the whole cache
                    stream.keep(alive)
                # The round fed the pending token and γ − 1 drafts. A row's last emitted token was
                # not fed, or is taken back with later drafts: it is the next round's pending token.
                stream.take_back(fed, count[alive])

    def _draft(self, length: int) -> tuple[Tensor, Tensor]:
        """γ student samples in a row (B, γ) and the distributions (B, γ, V) they were drawn from."""
        uniform = self._uniforms(Role.DRAFT, length)
        token = self._pending
        drafts: list[Tensor] = []
        log_p: list[Tensor] = []
        for index in range(length):
            log_p.append(self._student.feed(token[:, None])[:, 0])
            token = speculation.sample(log_p[-1], uniform[:, index])
            drafts.append(token)
        return torch.stack(drafts, 1), torch.stack(log_p, 1)

    def _check(self, log_prob: Tensor, owner: str) -> None:
        """Raise NotFinite if a distribution (B, γ, V) has a NaN.

        The softmax spreads a NaN over its whole row, so that the entry of EOS stands for all.
        """
        if bool(log_prob[..., self._eos].isnan().any()):
            raise NotFinite(f"the {owner}'s logits are not finite")

    def _positions(self) -> Tensor:
        """Response position (B,) of the next token."""
        return self.record.lengths[self.rows]

    def _uniforms(self, role: Role, length: int) -> Tensor:
        """Uniforms (B, γ) of the next positions."""
        positions = self._positions()[:, None] + torch.arange(length, device=self.rows.device)
        # A longer row passes its limit within a round. `advance` drops its tokens from there on, so
        # that they may repeat the last uniform.
        positions = positions.clamp_max(self._decoding.max_tokens - 1)
        return self._draws[role][self.rows].gather(1, positions)
