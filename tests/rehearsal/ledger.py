"""A ledger of the pretended device: bytes that live, their peak, and what the host reads while it
waits.

The host's tensors are real, those of the device are fake. Shapes cannot depend on data that do not
exist, so reads of the device are answered here: an index of rows that a mask selects has as many as
the mask, the most that it can have; a read number is 1; a read bool is True, which takes the branch
with more work, except where a function in `ANSWERED_FALSE` asks.
"""

from __future__ import annotations

import collections
import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

GIB = 2**30
DEVICE = "cuda"
aten = torch.ops.aten
# NaNs are no answer to go on with, and transformers asks whether a mask is all true only to leave
# it out.
ANSWERED_FALSE = (
    "_check",
    "_ignore_causal_mask_sdpa",
    "_can_skip_causal_mask_xpu",
    "find_packed_sequence_indices",
)
# Autograd's graph of fake tensors holds cycles; real tensors are freed by count. So garbage is
# collected before a peak that is this much higher than the last one counts.
COLLECT_BYTES = 2**27
LARGE = 2**24  # elements
# With a wider `dtype` these copy their whole input to it first (`ReduceOps.cpp`: `self.to(dtype)`).
# CUDA's sums spare that for half precision to float32, and not for float32 to float64.
WIDENING = (aten.sum, aten.mean, aten.prod, aten.cumsum, aten.cumprod)


class Ledger(TorchDispatchMode):
    """Counts storages of the pretended device while it is entered, inside of a `FakeTensorMode`."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0  # bytes
        self.peak = 0
        self.peak_at = ""
        self.reads: collections.Counter[str] = (
            collections.Counter()
        )  # of the host, by the function that waits
        self.operations = 0
        self._collected = 0  # bytes at the last collection of garbage, or the peak if that is more
        self._storages: set[int] = set()

    @property
    def peak_gib(self) -> float:
        return self.peak / GIB

    @property
    def live_gib(self) -> float:
        return self.live / GIB

    def start(self) -> None:
        """Forget peak, reads and operations: a new part begins."""
        gc.collect()
        gc.freeze()  # what is there already need not be looked at again
        self.peak, self.peak_at, self.operations = self.live, "", 0
        self._collected = self.live
        self.reads.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # questions such as where a tensor is
            return func(*args, **kwargs)
        if _on_host(args, kwargs):
            with _disable_current_modes():
                return func(*args, **kwargs)
        if func is aten._local_scalar_dense.default:
            return self._answer(args[0])
        if func is aten.nonzero.default:
            self._read("nonzero")
            out = args[0].new_empty((args[0].numel(), args[0].dim()), dtype=torch.long)
        elif func is aten.index.Tensor and any(_is_mask(index) for index in args[1]):
            self._read("index")
            out = args[0] + 0  # as many rows as there are
        elif func is aten._to_copy.default and not isinstance(args[0], FakeTensor):
            # A real tensor goes to the device: nothing but its shape does.
            out = torch.empty(
                args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype, device=kwargs["device"]
            )
        elif (
            func is aten._to_copy.default
            and _is_cpu(kwargs.get("device"))
            and args[0].device.type == DEVICE
        ):
            if not kwargs.get("non_blocking"):
                self._read("copy")
            return _on_its_way(args[0], kwargs.get("dtype") or args[0].dtype)
        else:
            out = func(*args, **kwargs)
        self.operations += 1
        widened = _widened(func, args, kwargs)  # lives until the operation is over
        for leaf in tree_leaves((out, widened)):
            if isinstance(leaf, Tensor):
                self._add(leaf)
        if self.live > self._collected + COLLECT_BYTES:
            gc.collect()
            self._collected = max(self.live, self.peak)
        if self.live > self.peak:
            self.peak, self.peak_at = self.live, f"{func} in {_where()}"
        return out

    def _answer(self, tensor: Tensor) -> float | bool | int:
        """A value for one element that the host reads."""
        place = self._read("item")
        if tensor.dtype is torch.bool:
            return not any(name in place for name in ANSWERED_FALSE)
        return 1.0 if tensor.is_floating_point() else 1

    def _read(self, kind: str) -> str:
        place = _where()
        self.reads[f"{kind} in {place}"] += 1
        return place

    def _add(self, tensor: Tensor) -> None:
        if tensor.device.type != DEVICE:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        size = storage.nbytes()
        if key in self._storages or not size:
            return
        self._storages.add(key)
        self.live += size
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self.live -= size


def _on_host(args: Any, kwargs: Any) -> bool:
    """Whether an operation works on the host's own tensors alone: these are real."""
    if any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, kwargs))):
        return False
    return kwargs.get("device") is None or _is_cpu(kwargs["device"])


def _is_cpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cpu"


def _on_its_way(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A real tensor of the host in place of a copy: zeros, or pages that are never touched where it
    is large.
    """
    make = torch.zeros if tensor.numel() < LARGE else torch.empty
    with _disable_current_modes():
        return make(tensor.shape, dtype=dtype)


def _widened(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """The copy of its input that a reduction makes in the wider dtype of its result, if any."""
    dtype = kwargs.get("dtype")
    if func.overloadpacket not in WIDENING or dtype is None:
        return None
    given = args[0].dtype
    if dtype.itemsize <= given.itemsize or (given.itemsize == 2 and dtype is torch.float32):
        return None
    return torch.empty(args[0].shape, dtype=dtype, device=args[0].device)


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype is torch.bool


def _where() -> str:
    """The innermost functions outside of torch, `file.function < file.function`."""
    frame, names = sys._getframe(2), []
    while frame is not None and len(names) < 3:
        file = frame.f_code.co_filename
        if "/site-packages/torch/" not in file and "/tests/rehearsal/" not in file:
            names.append(f"{Path(file).stem}.{frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(names)
