"""Which kernels an engine is started with."""

from __future__ import annotations

import pytest

from orchestrator.engines.sglang.toolchain import (
    Capability,
    attention_backend,
    draws_by_kernel,
    kernel_environment,
)
from orchestrator.errors import UserError
from orchestrator.rules import AttentionName

A100, L40S, H100, B200 = (8, 0), (8, 9), (9, 0), (10, 0)


@pytest.mark.parametrize("card", [A100, L40S, H100, B200])
@pytest.mark.parametrize("blends", [False, True])
def test_float32_goes_to_triton_on_every_gpu(card: Capability, blends: bool) -> None:
    assert attention_backend(None, "float32", card, blends) == "triton"


@pytest.mark.parametrize("card", [A100, L40S, H100, B200])
def test_half_precision_is_left_to_sglang(card: Capability) -> None:
    assert attention_backend(None, "bfloat16", card) is None


def test_blending_never_meets_pages_of_several_tokens() -> None:
    chosen = {
        card: attention_backend(None, "bfloat16", card, blends=True)
        for card in (A100, L40S, H100, B200)
    }
    assert chosen == {A100: None, L40S: None, H100: None, B200: "triton"}


@pytest.mark.parametrize("asked", ["triton", "fa3", "flashinfer"])
def test_what_was_asked_for_is_taken(asked: AttentionName) -> None:
    assert attention_backend(asked, "bfloat16", H100) == asked
    assert attention_backend(asked, "bfloat16", H100, blends=True) == asked


def test_without_a_gpu_torch_or_the_interpreter() -> None:
    assert attention_backend(None, "float32", None) == "torch_native"
    assert attention_backend("triton", "float32", None) == "triton"
    assert kernel_environment("triton", "float32", gpu=False)["TRITON_INTERPRET"] == "1"
    assert "TRITON_INTERPRET" not in kernel_environment("triton", "float32", gpu=True)
    assert "TRITON_INTERPRET" not in kernel_environment("torch_native", "float32", gpu=False)


def test_float32_is_not_rounded_to_tf32() -> None:
    assert kernel_environment("triton", "float32", gpu=True) == {"TRITON_F32_DEFAULT": "ieee"}
    assert kernel_environment(None, "bfloat16", gpu=True) == {}


@pytest.mark.parametrize(
    ("asked", "dtype", "card", "right"),
    [
        (
            "fa3",
            "float32",
            H100,
            "runtime.attention_backend: 'fa3': expected triton with engine.dtype=float32",
        ),
        ("fa3", "bfloat16", None, "runtime.attention_backend: 'fa3': expected triton, or nothing"),
    ],
)
def test_what_cannot_work_is_refused(
    asked: AttentionName, dtype: str, card: Capability | None, right: str
) -> None:
    with pytest.raises(UserError, match=right):
        attention_backend(asked, dtype, card)


def test_one_gpu_draws_by_kernel_unless_asked_otherwise() -> None:
    assert draws_by_kernel(None, None, H100, 1)
    assert draws_by_kernel("triton", None, A100, 1)
    assert not draws_by_kernel("torch", None, H100, 1)
    assert not draws_by_kernel(None, None, H100, 2)
    assert not draws_by_kernel(None, "torch_native", None, 1)
    assert not draws_by_kernel(None, "triton", None, 1), "interpreted only if asked"
    assert draws_by_kernel("triton", "triton", None, 1)


@pytest.mark.parametrize(
    ("attention", "card", "shards", "right"),
    [
        (None, H100, 2, "expected torch, or nothing, where several GPUs sample together"),
        ("torch_native", None, 1, "expected torch, or nothing, on a machine without a GPU"),
    ],
)
def test_a_kernel_that_cannot_draw_is_refused(
    attention: str | None, card: Capability | None, shards: int, right: str
) -> None:
    with pytest.raises(UserError, match=f"runtime.logits_kernel: 'triton': {right}"):
        draws_by_kernel("triton", attention, card, shards)
