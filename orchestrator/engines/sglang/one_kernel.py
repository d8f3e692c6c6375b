"""Builds and tries one of SGLang's compiled kernels before any engine starts.

SGLang 0.5.20 compiles `clamp_position` at its first decoding step, calls it at each step, and has
no other implementation on GPUs. Like `private`, this file uses SGLang's private parts; callers
first run `private.prepare`, which checks the version.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import torch


def build_one_kernel(architecture: tuple[int, int] | None = None) -> None:
    """Build the kernel for this GPU and check its result; with an `architecture`, only build it.

    Building alone needs no GPU. Raises the errors of SGLang's build with the compiler's output, and
    RuntimeError for a wrong result. It has run for an architecture, never on a GPU.
    """
    from sglang.kernels.jit.utils.arch import override_jit_cuda_arch
    from sglang.kernels.ops.attention import clamp_position

    if architecture is not None:
        with override_jit_cuda_arch(*architecture):
            clamp_position._jit_clamp_position_module(torch.int64)
        return
    lengths = torch.tensor([0, 1, 7], device="cuda")
    positions = clamp_position.clamp_position_cuda(lengths).tolist()
    if positions != [0, 0, 6]:
        raise RuntimeError(
            f"SGLang's clamp_position made {positions} of lengths [0, 1, 7], and not [0, 0, 6]"
        )
