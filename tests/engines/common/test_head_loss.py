"""What GPUs do otherwise in the loss of the head: products of 16-bit matrices with a result in
float32.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from orchestrator.engines.common import learning
from orchestrator.engines.common.learning import head_logits, summed_loss

N, H, V, K = 7, 8, 11, 3


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_the_products_of_gpus_exist_in_the_installed_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shapes alone, on tensors without memory: CPUs have no such products."""
    monkeypatch.setattr(learning, "_accumulates_precisely", lambda tensor: True)
    logits = learning._product(empty(N, H), empty(V, H).T)
    assert (logits.shape, logits.dtype) == ((N, V), torch.float32)
    gathered = learning._product(empty(N, K, H), empty(N, H, 1))
    assert (gathered.shape, gathered.dtype) == ((N, K, 1), torch.float32)
    total = empty(V, H, dtype=torch.float32)
    learning._add_product(total, empty(N, V).T, empty(N, H))
    assert total.shape == (V, H)


@pytest.mark.parametrize("gathered", [True, False])
@pytest.mark.parametrize("chunk", [1, 50, 10_000])
def test_products_in_float32_change_a_loss_by_their_rounding_alone(
    monkeypatch: pytest.MonkeyPatch, gathered: bool, chunk: int
) -> None:
    """With products as a GPU makes them, by their definition."""
    generator = torch.Generator().manual_seed(0)
    hidden, head = (torch.randn(rows, H, generator=generator).bfloat16() for rows in (N, V))
    support = torch.randint(V, (N, K), generator=generator) if gathered else None

    def results() -> list[Tensor]:
        given = [tensor.clone().requires_grad_() for tensor in (hidden, head)]
        loss = summed_loss(
            given[0], given[1], support, lambda logits, part: -logits.log_softmax(-1)[:, 0]
        )
        return [loss.detach(), *torch.autograd.grad(loss, given)]

    def exactly(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> Tensor:
        return a.to(out_dtype) @ b.to(out_dtype)

    def added(total: Tensor, a: Tensor, b: Tensor, out_dtype: torch.dtype, out: Tensor) -> None:
        assert out is total
        out += exactly(a, b, out_dtype)

    on_cpu = results()
    monkeypatch.setattr(learning, "_accumulates_precisely", lambda tensor: True)
    monkeypatch.setattr(learning, "CHUNK_ELEMENTS", {"cpu": chunk})
    for name, stands_in in (("mm", exactly), ("bmm", exactly), ("addmm", added)):
        monkeypatch.setattr(torch, name, stands_in)
    for ours, theirs in zip(results(), on_cpu, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("widened", [1, 100, 2**19])
def test_logits_of_16_bit_factors_are_rounded_once(
    widened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "WIDENED", widened)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 2, 16, generator=generator).bfloat16()
    head = torch.randn(37, 16, generator=generator)  # a learner's, wider than the hidden states
    exact = hidden.double() @ head.bfloat16().double().T
    with torch.autocast("cpu", torch.bfloat16):
        logits = head_logits(hidden, head)
    assert logits.dtype == torch.float32
    assert logits.shape == (3, 2, 37)
    assert float((logits - exact).abs().max()) < 1e-5
    bias = torch.arange(37).bfloat16()
    assert float((head_logits(hidden, head, bias) - exact - bias).abs().max()) < 1e-5
    rounded = hidden @ head.bfloat16().T
    assert float((rounded - exact).abs().max()) > 1e-3
    assert head_logits(hidden[:0], head).shape == (0, 2, 37)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_of_wide_factors_are_those_of_a_linear_layer(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 5, 16, generator=generator, dtype=dtype)
    for biased in (False, True):
        head = torch.nn.Linear(16, 37, bias=biased, dtype=dtype)
        assert torch.equal(head_logits(hidden, head.weight, head.bias), head(hidden))
