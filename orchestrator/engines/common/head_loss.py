"""Losses from hidden states and the LM head, chunk by chunk: all logits never exist at once.

The forward pass computes the gradients of hidden states and head while a chunk's logits exist, so
memory holds one chunk instead of tokens × vocabulary. A loss on a few logits of each token gathers
only the rows of the head for these.

Shapes: N tokens, H hidden, V vocabulary rows, K gathered ids of each token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

# Logits, or gathered head values, of one chunk. On GPUs the cost is reading and writing the head's
# whole gradient for each chunk. Chunks are therefore long: 883 tokens of Qwen3's vocabulary, at
# about 20 bytes per logit.
CHUNK_ELEMENTS = {"cpu": 2**24, "cuda": 2**27}

WIDENED = 2**17  # values of a 16-bit head that a CPU widens at once: they fit into its caches

# Losses (n,) from a chunk's logits, (n, V) or (n, K), and its slice of tokens.
LossOfLogits = Callable[[Tensor, slice], Tensor]


def summed_loss(hidden: Tensor, head: Tensor, support: Tensor | None, loss: LossOfLogits) -> Tensor:
    """Σ over N tokens of `loss`, differentiable in hidden (N, H) and head (V, H).

    With `support` (N, K) the loss sees the logits of those ids alone. Logits are float32 or better.
    """
    return _SummedLoss.apply(hidden, head, support, loss)  # pyright: ignore[reportReturnType]


def head_logits(hidden: Tensor, head: Tensor, bias: Tensor | None = None) -> Tensor:
    """Logits (…, V) of hidden states (…, H) and a head (V, H), in float32 or better.

    Products of 16-bit numbers are exact in float32, so that only their sum is rounded. The head is
    taken in the dtype of the hidden states, in which samplers have it.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        head = head.to(hidden.dtype)
        if hidden.dtype not in (torch.bfloat16, torch.float16):
            return linear(hidden, head, None if bias is None else bias.to(hidden.dtype))
        rows = hidden.flatten(0, -2)
        if _accumulates_precisely(rows):
            logits = _product(rows, head.T)
        else:
            # Widened part by part: a float32 copy of the whole head would be written and read again
            # for each token of a decoding step.
            logits = rows.new_empty(len(rows), len(head), dtype=torch.float32)
            wide = rows.float().T.contiguous()
            size = max(1, WIDENED // head.shape[1])
            for start in range(0, len(head), size):
                part = slice(start, start + size)
                logits[:, part] = (head[part].float() @ wide).T
        if bias is not None:
            logits += bias
        return logits.unflatten(0, hidden.shape[:-1])


class _SummedLoss(torch.autograd.Function):
    """The sum with its gradients from the forward pass; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, support: Tensor | None, loss: LossOfLogits
    ) -> Tensor:
        # In float32 even for a bfloat16 head: an id's row sums over many tokens and chunks.
        head_gradient = torch.zeros_like(head, dtype=_precise(head.dtype))
        hidden_gradient = torch.empty_like(hidden)
        total = torch.zeros((), dtype=_precise(hidden.dtype), device=hidden.device)
        width = head.shape[0] if support is None else support.shape[1] * head.shape[1]
        size = max(1, CHUNK_ELEMENTS[hidden.device.type] // width)
        cast = head.to(hidden.dtype)
        for start in range(0, len(hidden), size):
            part = slice(start, min(start + size, len(hidden)))
            ids = None if support is None else support[part]
            total += _chunk(
                hidden[part], cast, ids, part, loss, hidden_gradient[part], head_gradient
            )
        ctx.gradients = hidden_gradient, head_gradient.to(head.dtype)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        # Scaled in place and handed over, since the head's gradient is as large as the head. The
        # backward pass therefore runs only once.
        hidden_gradient, head_gradient = ctx.gradients
        ctx.gradients = None
        for gradient in (hidden_gradient, head_gradient):
            gradient.mul_(upstream[0].to(gradient.dtype))
        return hidden_gradient, head_gradient, None, None


def _chunk(
    hidden: Tensor,
    head: Tensor,
    ids: Tensor | None,
    part: slice,
    loss: LossOfLogits,
    to_hidden: Tensor,
    to_head: Tensor,
) -> Tensor:
    """Loss of one chunk; its gradients are written to `to_hidden` and added to `to_head`.

    A separate function, so that a chunk's logits are freed before the next chunk's are made.
    """
    if ids is None:
        rows = head
        logits = _product(hidden, head.T)
    else:
        rows = head[ids]  # (n, K, H)
        logits = _product(rows, hidden[:, :, None])[:, :, 0]
    leaf = logits.detach().requires_grad_()
    with torch.enable_grad():
        value = loss(leaf, part).sum()
        gradient = torch.autograd.grad(value, leaf)[0].to(hidden.dtype)
    if ids is None:
        to_hidden.copy_(gradient @ head)
        _add_product(to_head, gradient.T, hidden)
    else:
        # An id may be in the support of many tokens; its row of the head sums over them.
        to_hidden.copy_((gradient[:, None, :] @ rows)[:, 0])
        outer = gradient[:, :, None] * hidden[:, None, :]
        to_head.index_add_(0, ids.flatten(), outer.flatten(0, 1).to(to_head.dtype))
    return value.detach()


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of matrices, or of batches of them, in float32 or better."""
    if _accumulates_precisely(a):
        multiply = torch.mm if a.dim() == 2 else torch.bmm
        return multiply(a, b, out_dtype=torch.float32)
    return (a @ b).to(_precise(a.dtype))


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `total`, which is float32 or better, without a copy of its size on CUDA."""
    if _accumulates_precisely(a):
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))


def _accumulates_precisely(tensor: Tensor) -> bool:
    """Whether PyTorch multiplies with a float32 result on tensor cores: 16-bit matrices on CUDA."""
    return tensor.device.type == "cuda" and tensor.dtype in (torch.bfloat16, torch.float16)


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
