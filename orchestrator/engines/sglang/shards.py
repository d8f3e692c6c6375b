"""What the shards of one engine, which share out every layer between them, have to agree on."""

from __future__ import annotations

from typing import Any

from torch import Tensor, distributed


def agreed(tokens: Tensor, shards: Any) -> Tensor:
    """The tokens that the first of the shards has drawn, in place on all of them; `shards` is their process group.

    All of them draw from the same logits. But a sum that a GPU takes in another order may turn the rarest draw, and
    shards that went on with different tokens would wait for each other for ever.
    """
    if distributed.get_world_size(shards) > 1:
        distributed.broadcast(tokens, distributed.get_global_rank(shards, 0), group=shards)
    return tokens
