"""A CUDA device that is not there: fake tensors have its name, their sizes are counted, and nothing
is computed.

`FakeTensorMode` gives tensors shapes, dtypes and devices without memory. A CPU build of torch stops
at the first backward pass on such tensors, because autograd asks the device for a guard;
`pretended_cuda.cpp` is that guard. It changes the whole process, so a rehearsal has a process of
its own, which calls `install` before it imports torch: torch looks for a device's hooks once.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

SOURCE = Path(__file__).with_name("pretended_cuda.cpp")


def compiler() -> str | None:
    """The C++ compiler of this machine."""
    return shutil.which("g++")


def install() -> None:
    """Let this process work with fake tensors on `cuda`. Raises RuntimeError where the guard cannot
    be compiled.
    """
    assert "torch" not in sys.modules, "torch has looked for its devices already"
    version = importlib.metadata.version("torch")
    if version.endswith("+cpu"):
        ctypes.CDLL(str(_guard(version)))
    import torch

    cuda: Any = torch.cuda
    cuda.is_available = cuda.is_bf16_supported = lambda *_: True
    torch.backends.cuda.is_flash_attention_available = lambda: True
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.synchronize = cuda.empty_cache = lambda *_: None
    cuda.Event = _Event
    _make_on_the_host_first()
    torch.nn.functional.scaled_dot_product_attention = _attention
    torch.nn.functional.rms_norm = _rms_norm


class _Event:
    """A point in the device's work, which is always done."""

    def record(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...


def _guard(version: str) -> Path:
    """The compiled guard, which is kept beside this Python's packages for as long as torch and the
    source stay.
    """
    key = hashlib.sha256(SOURCE.read_bytes() + version.encode()).hexdigest()[:16]
    library = Path(sys.prefix) / "rehearsal" / f"pretended_cuda_{key}.so"
    if library.exists():
        return library
    gxx = compiler()
    if gxx is None:
        raise RuntimeError("g++ is not installed: apt-get install g++")
    library.parent.mkdir(exist_ok=True)
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    root, scratch = Path(spec.origin).parent, library.with_suffix(f".{os.getpid()}.tmp")
    headers = [f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include"]
    libraries = [f"-L{root}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{root}/lib"]
    command = [
        gxx,
        "-std=c++20",
        "-shared",
        "-fPIC",
        *headers,
        str(SOURCE),
        "-o",
        str(scratch),
        *libraries,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the pretended device does not compile:\n{done.stderr[-2000:]}")
    scratch.replace(library)
    return library


def _make_on_the_host_first() -> None:
    """`torch.tensor(data, device="cuda")` would ask a real device for memory; a copy from the host
    does not.
    """
    import torch

    made = torch.tensor

    def tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        on_host = made(data, **options)
        return on_host if device is None else on_host.to(device)

    torch.tensor = tensor


def _rms_norm(
    hidden: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """The norm by CUDA's one kernel, which keeps its input and a number for each row.

    A build of torch for CPUs has no such kernel, and would compose the norm of six in float32.
    """
    import torch

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(hidden, weight, hidden.new_empty(hidden.shape[:-1]).float())
            return torch.empty_like(hidden)

        @staticmethod
        def backward(ctx: Any, *upstream: Tensor) -> Any:
            hidden, weight, _ = ctx.saved_tensors
            return torch.empty_like(hidden), torch.empty_like(weight)

    assert weight is not None
    return Norm.apply(hidden, weight)  # pyright: ignore[reportReturnType]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Scaled dot-product attention by the kernel that CUDA takes for it, with the memory which that
    kernel wants.

    Without a mask, in half precision: flash attention. With a mask: the memory-efficient kernel,
    which wants an additive mask that is expanded over heads and padded to 8 columns.
    """
    import torch
    from torch.nn import functional

    aten = torch.ops.aten
    if torch.is_autocast_enabled("cuda"):  # it does this to the real function
        dtype = torch.get_autocast_dtype("cuda")
        query, key, value = (each.to(dtype) for each in (query, key, value))
    if enable_gqa:
        groups = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
    if attn_mask is None and query.dtype in (torch.bfloat16, torch.float16):
        flash = aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    bias = None
    if attn_mask is not None:
        bias = attn_mask
        if attn_mask.dtype == torch.bool:
            bias = torch.zeros(attn_mask.shape, dtype=query.dtype, device=query.device)
            bias = bias.masked_fill_(~attn_mask, float("-inf"))
        if columns := -bias.shape[-1] % 8:
            bias = functional.pad(bias, (0, columns))[..., : attn_mask.shape[-1]]
        bias = bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    efficient = aten._scaled_dot_product_efficient_attention
    return efficient(
        query, key, value, bias, query.requires_grad, dropout_p, is_causal, scale=scale
    )[0]
