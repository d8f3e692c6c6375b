"""Rows as models take them, and attention of packed sequences against each sequence by itself in
float64.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from orchestrator.engines.common.passes import (
    PACKABLE,
    Passes,
    has_packed_kernel,
    micro_batches,
    packed,
    packed_attention,
    padded,
    response_tokens,
)
from tests import tiny

CPU = torch.device("cpu")
PROMPTS: list[tuple[int, ...]] = [(5, 6, 7), (8,), (4, 4)]
RESPONSES = [[1, 2], [3, 4, 9], [6]]
LENGTHS = [[9], [5, 1, 7], [3, 3]]


@pytest.mark.parametrize("max_tokens", [1, 8, 9, 20, 21, 1000])
@pytest.mark.parametrize("in_one_row", [False, True])
def test_micro_batches_are_the_longest_groups_that_fit(max_tokens: int, in_one_row: bool) -> None:
    lengths = [4, 4, 8, 3, 3, 3, 20, 1, 1, 5]

    def tokens(group: list[int]) -> int:
        held = [lengths[row] for row in group]
        return sum(held) if in_one_row else max(held) * len(held)

    groups = list(micro_batches(lengths, max_tokens, in_one_row))
    order = [row for group in groups for row in group]
    assert order == sorted(range(len(lengths)), key=lambda row: lengths[row])
    for group, following in zip(groups, [*groups[1:], None], strict=True):
        assert len(group) == 1 or tokens(group) <= max_tokens
        if following is not None:
            assert tokens([*group, following[0]]) > max_tokens
    assert list(micro_batches([], max_tokens, in_one_row)) == []


def test_padded_rows_point_at_what_predicts_each_response_token() -> None:
    rows = padded(PROMPTS, RESPONSES, CPU)
    assert rows.ids.tolist() == [[5, 6, 7, 1, 2], [8, 3, 4, 9, 0], [4, 4, 6, 0, 0]]
    assert rows.attention.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]
    assert rows.rows.tolist() == [0, 0, 1, 1, 1, 2]
    assert rows.ids[rows.rows, rows.columns + 1].tolist() == [1, 2, 3, 4, 9, 6]
    assert rows.ids[rows.rows, rows.columns].tolist() == [7, 1, 8, 3, 4, 4]


def test_a_packed_row_points_at_the_same_tokens_and_starts_again_with_each_sequence() -> None:
    row, rows = packed(PROMPTS, RESPONSES, CPU), padded(PROMPTS, RESPONSES, CPU)
    assert row.ids.tolist() == [[5, 6, 7, 1, 2, 8, 3, 4, 9, 4, 4, 6]]
    assert row.packing["position_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2]]
    assert row.packing["cu_seq_lens_q"].tolist() == [0, 5, 9, 12]
    assert row.packing["cu_seq_lens_q"].dtype == torch.int32
    assert row.packing["max_length_q"] == 5
    for shift in (0, 1):
        expected = rows.ids[rows.rows, rows.columns + shift]
        assert torch.equal(row.ids[row.rows, row.columns + shift], expected)


def test_response_tokens_are_those_of_the_rows_in_their_order() -> None:
    rows, positions = response_tokens(torch.tensor([2, 0, 3, 1]), [2, 1, 0])
    assert rows.tolist() == [2, 2, 2, 0, 0]
    assert positions.tolist() == [0, 1, 2, 0, 1]


def alone(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention of one sequence by its definition: (heads, n, D) of queries, (groups, n, D)
    of the others.
    """
    key, value = (tensor.repeat_interleave(len(query) // len(key), 0) for tensor in (key, value))
    scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
    hidden = torch.ones(scores.shape[1:]).triu(1).bool()
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value


def heads(lengths: list[int], dtype: torch.dtype, groups: int) -> list[Tensor]:
    """Random queries (1, 4, L, 8), keys and values (1, groups, L, 8)."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(1, count, sum(lengths), 8) for count in (4, groups, groups)]
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes
    ]


def bounds_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_packed_attention_is_that_of_each_sequence_alone(
    lengths: list[int], groups: int, dtype: torch.dtype, tolerance: float
) -> None:
    given = [tensor.requires_grad_() for tensor in heads(lengths, dtype, groups)]
    query, key, value = given
    output = packed_attention(query, key, value, bounds_of(lengths), max(lengths), 8**-0.5)
    assert output.shape == (1, sum(lengths), 4, 8)
    parts = []
    for q, k, v in zip(*(tensor.double()[0].split(lengths, 1) for tensor in given), strict=True):
        parts.append(alone(q, k, v))
    expected = torch.cat(parts, 1)
    torch.testing.assert_close(output[0].double(), expected.transpose(0, 1), atol=tolerance, rtol=0)
    weight = torch.randn(
        output.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    ours = torch.autograd.grad((output.double() * weight).sum(), given)
    theirs = torch.autograd.grad((expected.transpose(0, 1)[None] * weight).sum(), given)
    for gradient, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(gradient, reference, atol=tolerance * 10, rtol=0)


def test_queries_that_autocast_left_in_float32_meet_the_values_in_their_dtype() -> None:
    query, key, value = heads([4, 2], torch.float32, 2)
    bounds = bounds_of([4, 2])
    output = packed_attention(query, key, value.bfloat16(), bounds, 4, None)
    assert output.dtype == torch.bfloat16
    exact = packed_attention(query, key, value, bounds, 4, None)
    torch.testing.assert_close(output.float(), exact, atol=0.05, rtol=0)


def test_another_attention_is_not_handed_a_packed_row() -> None:
    student = tiny.student()
    student.model.set_attn_implementation("sdpa")
    with pytest.raises(AssertionError):
        student.predicting(packed(PROMPTS, RESPONSES, CPU))
    student.predicting(padded(PROMPTS, RESPONSES, CPU))


def test_the_kernel_of_gpus_takes_a_packed_row_and_gives_gradients() -> None:
    """Shapes alone, on tensors without memory: the installed PyTorch has the kernel, under the
    arguments given.
    """
    student = tiny.student().model.bfloat16().to("meta").train()
    student.set_attn_implementation(PACKABLE)
    row = packed(PROMPTS, RESPONSES, torch.device("meta"))
    hidden = student.model(
        input_ids=row.ids, attention_mask=row.attention, use_cache=False, **row.packing
    )
    assert hidden.last_hidden_state.shape == (1, row.ids.shape[1], student.config.hidden_size)
    hidden.last_hidden_state.sum().backward()
    gradient = student.model.layers[0].self_attn.k_proj.weight.grad
    assert gradient is not None
    assert gradient.shape == student.model.layers[0].self_attn.k_proj.weight.shape


@pytest.mark.parametrize(
    ("dtype", "capability", "built", "packs"),
    [
        (torch.bfloat16, (9, 0), True, True),
        (torch.float16, (8, 0), True, True),
        (torch.float32, (9, 0), True, False),
        (torch.bfloat16, (7, 5), True, False),
        (torch.bfloat16, (9, 0), False, False),
    ],
)
def test_packed_where_card_dtype_and_build_have_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    capability: tuple[int, int],
    built: bool,
    packs: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: built)
    assert Passes.on(torch.device("cuda"), dtype) == Passes(
        packed=packs, checkpointing=True, lean=True
    )
    assert not has_packed_kernel(CPU, dtype)
    assert Passes.on(CPU, dtype) == Passes()
    assert not Passes.on(torch.device("cuda"), dtype, False).checkpointing
    assert Passes.on(CPU, dtype, True) == Passes(checkpointing=True)
