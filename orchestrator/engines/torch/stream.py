"""One model's KV cache for a batch of sequences in decoding, with slots that can be taken back.

A stream holds all tokens of a row but its last, the pending one. Feeding the pending token and
drafts after it gives the distributions at those prefixes. Slots of rejected drafts are masked, and
the cache is compacted when too many slots are dead.

Shapes: B rows, n fed tokens, L cache slots, V vocabulary rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orchestrator.engines.common.causal import CausalModel
from orchestrator.engines.torch.slots import SlotCache, windows

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
