"""Keeps the shards of one engine, which split every layer between them, on the same tokens."""

from __future__ import annotations

from typing import Any

from torch import Tensor, distributed


def agreed(tokens: Tensor, shards: Any) -> Tensor:
    """Broadcast the first shard's tokens to all shards, in place; `shards` is their process group.

    All shards draw from the same logits. But GPUs may sum in different orders and so change a rare
    draw, and shards with different tokens would wait for each other forever.
    """
    if distributed.get_world_size(shards) > 1:
        distributed.broadcast(tokens, distributed.get_global_rank(shards, 0), group=shards)
    return tokens
