"""Keys and values of a model's layers in buffers that grow by blocks, so that appending is cheap.

A transformers cache copies all keys and values for each new token; these buffers copy only the new
ones.

Shapes: B rows, G key-value heads, L slots in use, D head dimension.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor
from transformers import Cache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

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
