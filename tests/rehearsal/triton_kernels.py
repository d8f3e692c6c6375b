"""Builds Triton kernels for a card that is not there, as their launchers would start them: those of
SGLang's attention, and those that read logits.

Triton compiles for any GPU on any machine; its own assembler is in the wheel. A kernel that asks
for more shared memory than the card has would fail at its first start. `cards.pretend` comes first:
SGLang's launchers choose their blocks by the card when they are imported.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from orchestrator.engines.interface import Owner
from orchestrator.engines.sglang.toolchain import kernel_environment
from orchestrator.policy.vocabulary import TokenSpace
from tests.rehearsal.cards import Card

REQUESTS, TOKENS, SPLITS = 4, 64, 8


def shared_bytes(
    card: Card, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int
) -> dict[str, int]:
    """Kernel → bytes of shared memory, of one decoding step and of one prefill behind a cached
    prefix.
    """
    os.environ |= kernel_environment("triton", str(dtype).removeprefix("torch."), gpu=True)
    with building(card) as built:
        _launch(dtype, heads, kv_heads, head_dim)
    return built


def sampler_bytes(card: Card, tau: float, owner: Owner) -> dict[str, int]:
    """The same of the kernels that read logits over Qwen3's vocabulary."""
    from orchestrator.engines.common import vocabulary_kernels

    logits, rows = torch.zeros(1, 151936), torch.zeros(1, 2, dtype=torch.int64)
    space = TokenSpace(151669, 151643, 151645)
    with building(card) as built:
        vocabulary_kernels.draw(logits, space, owner, tau, 16, rows, rows[:, 0], rows)
        support = torch.zeros(1, 16, dtype=torch.int64)
        vocabulary_kernels.teacher_statistics(logits, space, rows[:, 0], support)
    return built


@contextlib.contextmanager
def building(card: Card) -> Iterator[dict[str, int]]:
    """Compile the kernels that are started inside, and start none; their shared memory by name."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver, jit

    class Driver:
        """What Triton asks of a GPU to compile for it."""

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 10 * card.capability[0] + card.capability[1], 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, *_: Any) -> int:
            return 0

    pretended: Any = Driver()
    driver.set_active(pretended)
    built: dict[str, int] = {}
    function: Any = jit.JITFunction
    started = function.run

    def build(kernel: Any, *arguments: Any, warmup: bool = False, **options: Any) -> Any:
        compiled = started(
            kernel, *arguments, warmup=True, **options
        )  # compiles and does not start
        built[kernel.__name__] = compiled.metadata.shared
        return compiled

    function.run = build
    try:
        yield built
    finally:
        function.run = started


def _launch(dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int) -> None:
    """Call SGLang's launchers as `layers.attention.triton_backend` does; nothing is read or
    written.
    """
    from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    query = torch.zeros(TOKENS, heads, head_dim, dtype=dtype)
    keys = torch.zeros(TOKENS, kv_heads, head_dim, dtype=dtype)
    starts = torch.zeros(REQUESTS + 1, dtype=torch.int32)
    slots = torch.zeros(TOKENS, dtype=torch.int64)
    scale = head_dim**-0.5
    partial = torch.zeros(REQUESTS, heads, SPLITS, head_dim)
    splits = torch.ones(REQUESTS, dtype=torch.int32)
    last = query[:REQUESTS]
    decode_attention_fwd(
        last,
        keys,
        keys,
        last,
        starts,
        slots,
        partial,
        partial[..., 0],
        splits,
        SPLITS,
        scale,
        1.0,
        1.0,
    )
    extend_attention_fwd(
        query,
        keys,
        keys,
        query,
        keys,
        keys,
        starts,
        starts,
        slots,
        None,
        True,
        None,
        TOKENS,
        1.0,
        1.0,
        scale,
    )
