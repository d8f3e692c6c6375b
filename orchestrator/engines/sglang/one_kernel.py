"""One of the kernels that SGLang compiles when it first decodes, built and tried before any engine is started.

`clamp_position` is called at each decoding step of SGLang 0.5.20 and has no other implementation on GPUs. Like
`private`, this file leans on SGLang's inside, and is called after `private.prepare`, which checks the version.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import torch


def build_one_kernel(architecture: tuple[int, int] | None = None) -> None:
    """Build the kernel for the GPU that is here and compare what it computes; or only build it, for an `architecture`.

    nvcc needs no GPU for that. Raises what SGLang's build raises, with the compiler's words, and RuntimeError
    where the kernel computes something else. It has run for an architecture, never on a GPU.
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
        raise RuntimeError(f"SGLang's clamp_position made {positions} of lengths [0, 1, 7], and not [0, 0, 6]")
