"""Forward and backward passes of scoring and learning: their inputs, attention and options.

Prompts and responses are laid out as padded rows, or packed into one row.

Shapes: B sequences, L positions, N response tokens, flattened sequence by sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import rms_norm, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

# --- lays out prompts and responses ---


@dataclass(frozen=True)
class Inputs:
    """Token ids of one forward pass, and the positions that predict the N response tokens.

    Padded on the right, `ids` are (B, L), and `attention` (B, L) is 1 at tokens. Packed, `ids` are
    (1, L), and `packing` holds the sequence bounds; see `packed`. Hidden states at
    [`rows`, `columns`] predict the tokens.
    """

    ids: Tensor
    attention: Any
    rows: Tensor  # (N,)
    columns: Tensor  # (N,)
    packing: dict[str, Any] = field(default_factory=dict)


def inputs(
    prompts: Sequence[tuple[int, ...]],
    responses: Sequence[Sequence[int]],
    device: torch.device,
    in_one_row: bool,
) -> Inputs:
    """Prompts followed by responses for one forward pass, `packed` or `padded`."""
    return packed(prompts, responses, device) if in_one_row else padded(prompts, responses, device)


def padded(
    prompts: Sequence[tuple[int, ...]], responses: Sequence[Sequence[int]], device: torch.device
) -> Inputs:
    """A row for each sequence, padded on the right, with a mask for any attention."""
    sequences = [[*prompt, *response] for prompt, response in zip(prompts, responses, strict=True)]
    ids = torch.zeros(len(prompts), max(map(len, sequences)), dtype=torch.long)
    attention = torch.zeros_like(ids)
    rows: list[int] = []
    columns: list[int] = []
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
        attention[row, : len(sequence)] = 1
        rows += [row] * len(responses[row])
        # The logits at a position predict the token after it: the prompt's last position predicts
        # the first token of the response, and the response's last position is not read.
        columns += range(len(prompts[row]) - 1, len(sequence) - 1)
    return Inputs(
        ids.to(device), attention.to(device), _tensor(rows, device), _tensor(columns, device)
    )


def packed(
    prompts: Sequence[tuple[int, ...]], responses: Sequence[Sequence[int]], device: torch.device
) -> Inputs:
    """One row of all sequences, for attention that takes their bounds (`packed_attention`).

    Positions restart with each sequence. The bounds have the names under which transformers passes
    them on to attention. The mask is a single value, which that attention does not read: for a
    tensor of four dimensions transformers makes no mask of L × L, whatever the architecture.
    """
    ids: list[int] = []
    positions: list[int] = []
    columns: list[int] = []
    lengths: list[int] = []
    for prompt, response in zip(prompts, responses, strict=True):
        start = len(ids) + len(prompt) - 1  # as in `padded`
        columns += range(start, start + len(response))
        ids += [*prompt, *response]
        lengths.append(len(prompt) + len(response))
        positions += range(lengths[-1])
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    packing = {
        "position_ids": _tensor(positions, device)[None],
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }
    columns_N = _tensor(columns, device)
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
    return Inputs(_tensor(ids, device)[None], mask, torch.zeros_like(columns_N), columns_N, packing)


def response_tokens(lengths_B: Tensor, group: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Row in the batch and position in the response, (N,) each, of the rows' response tokens."""
    rows: list[int] = []
    positions: list[int] = []
    for row in group:
        length = int(lengths_B[row])
        rows += [row] * length
        positions += range(length)
    return torch.tensor(rows, dtype=torch.long), torch.tensor(positions, dtype=torch.long)


def micro_batches(
    lengths: Iterable[int], max_tokens: int, in_one_row: bool = False
) -> Iterator[list[int]]:
    """Yield groups of row indices, shortest rows first, of at most `max_tokens` tokens each.

    A group of a single row may have more. A padded group has rows × longest row tokens; rows of
    similar length share one, which keeps padding small. Rows packed into one have the sum of their
    lengths.
    """
    group: list[int] = []
    held = 0
    for length, row in sorted((length, row) for row, length in enumerate(lengths)):
        grown = held + length if in_one_row else length * (len(group) + 1)
        if group and grown > max_tokens:
            yield group
            group, grown = [], length
        group.append(row)
        held = grown
    if group:
        yield group


def _tensor(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.long, device=device)


# --- registers two attentions with transformers: grouped heads on CPUs, and packed sequences ---
#
# With a mask, as always in decoding, transformers copies keys and values for each query head. One
# token's attention then takes twice as long on a CPU. On GPUs transformers' own choice handles masks.
#
# Packed sequences lie one after the other in one row and need no mask. GPUs run PyTorch's
# `varlen_attn`, a kernel that takes their bounds; it has never been run on a GPU here. CPUs take one
# sequence after the other.


GROUPED = "grouped_sdpa"  # on CPUs
PACKABLE = "packable_sdpa"  # on GPUs
READS_PACKED = (GROUPED, PACKABLE)
KERNEL_CAPABILITY = (8, 0)  # the oldest GPUs with flash attention


def attention_for(device: torch.device) -> str:
    """The name of a device's attention in transformers' registry."""
    return GROUPED if device.type == "cpu" else PACKABLE


def has_packed_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a device has a kernel for packed attention: NVIDIA's from Ampere on, in 16 bits."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    built = torch.backends.cuda.is_flash_attention_available()
    return built and torch.cuda.get_device_capability(device) >= KERNEL_CAPABILITY


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    longest: int,
    scale: float | None,
    window: int | None = None,
) -> Tensor:
    """Causal attention of each sequence to itself alone, (1, L, heads, D).

    Queries are (1, heads, L, D), keys and values (1, groups, L, D). Sequence i has the positions
    from `bounds[i]` up to `bounds[i + 1]` (int32); the longest has `longest`. With a `window` a
    token sees so many positions, its own included. Computed in the dtype of `value`: autocast
    covers neither way, and leaves queries and keys in float32 after their norms.
    """
    query, key = query.to(value.dtype), key.to(value.dtype)
    if query.device.type == "cpu":
        parts: list[Tensor] = []
        for start, end in pairwise(bounds.tolist()):
            own = slice(start, end)
            near = None
            if window is not None and window < end - start:
                seen = torch.ones(end - start, end - start, dtype=torch.bool)
                near = seen.tril() & seen.triu(1 - window)
            parts.append(
                scaled_dot_product_attention(
                    query[:, :, own],
                    key[:, :, own],
                    value[:, :, own],
                    attn_mask=near,
                    scale=scale,
                    is_causal=near is None,
                    enable_gqa=True,
                )
            )
        return torch.cat(parts, 2).transpose(1, 2)
    # The kernel takes (L, heads, D), all sequences one after the other.
    output = varlen_attn(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        bounds,
        bounds,
        longest,
        longest,
        scale=scale,
        # Tokens to the left and to the right; -1 is any number.
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
    )
    assert isinstance(output, Tensor)
    return output[None]


def _packed(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None, passed: dict[str, Any]
) -> Tensor:
    """`packed_attention` with the bounds, and a layer's window, as transformers passed them."""
    return packed_attention(
        query,
        key,
        value,
        passed["cu_seq_lens_q"],
        passed["max_length_q"],
        scale,
        passed.get("sliding_window"),
    )


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
    """Attention without copies of keys and values, (B, n, heads, D).

    Queries are (B, heads, n, D), keys and values (B, groups, L, D), the bool mask (B, 1, n, L).
    """
    if "cu_seq_lens_q" in kwargs:
        return _packed(query, key, value, scaling, kwargs), None
    rows, heads, fed, width = query.shape
    if fed == 1:
        # All heads of a group see the same slots. One token's heads can therefore act as queries of
        # their group: one product per group instead of one per head. The mask (B, 1, 1, L)
        # broadcasts.
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


def _packable(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention of the same shapes, with packed sequences handled here."""
    if "cu_seq_lens_q" in kwargs:
        return _packed(query, key, value, kwargs.get("scaling"), kwargs), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


for _name, _attention in ((GROUPED, _grouped), (PACKABLE, _packable)):
    AttentionInterface.register(_name, _attention)
    AttentionMaskInterface.register(_name, sdpa_mask)


# --- options, by device ---


@dataclass(frozen=True)
class Passes:
    """Options that change time and memory of passes, and results by rounding alone.

    `packed` sequences lie one after the other in one row, without padding. `checkpointing` keeps
    only the input of each layer, and recomputes the layer in the backward pass. `lean` passes have
    all activations in the dtype of the passes, and norms that read and write them once.
    """

    packed: bool = False
    checkpointing: bool = False
    lean: bool = False

    @staticmethod
    def on(device: torch.device, dtype: torch.dtype, checkpointing: bool | None = None) -> Passes:
        """Options for a device and a forward `dtype`; `checkpointing` as given, else on GPUs.

        CPUs have memory for all activations. For a GPU `engines.budget` decides.
        """
        on_gpu = device.type == "cuda"
        return Passes(
            packed=has_packed_kernel(device, dtype),
            checkpointing=on_gpu if checkpointing is None else checkpointing,
            lean=on_gpu,
        )


def checkpoint_activations(model: Any) -> None:
    """Let the layers of a transformers model keep only their inputs while it is in train mode."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def make_lean(model: Any, dtype: torch.dtype) -> None:
    """Let the activations of a transformers model have `dtype`, independent of its weights.

    Autocast alone leaves the residual stream in float32, as the embedding's rows are, and with it
    the norms and their outputs: twice the bytes to keep, read and write.
    """
    fuse_norms(model)
    model.get_input_embeddings().register_forward_hook(lambda _module, _ids, rows: rows.to(dtype))


def fuse_norms(model: Any) -> None:
    """Run each RMS norm as one kernel if the device has it, not as transformers' six in float32."""
    for module in model.modules():
        # The norms of each architecture are classes of their own, alike in name and attribute.
        # `engines.torch.architecture` compares models before and after.
        if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.forward = MethodType(_fused_norm, module)


def _fused_norm(self: Any, hidden: Tensor) -> Tensor:
    weight = self.weight.to(hidden.dtype)  # PyTorch's kernel needs equal dtypes
    with torch.autocast(hidden.device.type, enabled=False):
        return rms_norm(hidden, weight.shape, weight, self.variance_epsilon)
