"""Attention on CPUs: PyTorch's own, with grouped key-value heads as they are.

transformers copies keys and values once for each query head whenever there is a mask, which in decoding is always: one
token's attention then takes twice as long. On GPUs transformers' choice is kept; nothing else was measured there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

GROUPED = "grouped_sdpa"


def attention_for(device: torch.device) -> str:
    """The name transformers knows the attention of a device by."""
    return GROUPED if device.type == "cpu" else "sdpa"


def _grouped(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Queries (B, heads, n, D), keys and values (B, groups, L, D), bool mask (B, 1, n, L) → (B, n, heads, D)."""
    rows, heads, fed, width = query.shape
    if fed == 1:
        # All heads of a group see the same slots, so one token's heads can stand as so many queries of their group: one
        # product for each group instead of one for each head. The mask (B, 1, 1, L) holds for each of these queries.
        query = query.view(rows, key.shape[1], heads // key.shape[1], width)
    output = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        scale=scaling,
        is_causal=fed > 1 and attention_mask is None,
        enable_gqa=True,
    )
    return output.reshape(rows, heads, fed, width).transpose(1, 2).contiguous(), None


AttentionInterface.register(GROUPED, _grouped)
AttentionMaskInterface.register(GROUPED, sdpa_mask)
