"""Moves a learner's weights and AdamW moments to host memory while other roles use the GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.optim import AdamW

MOMENTS = ("exp_avg", "exp_avg_sq")
# PyTorch rounds each page-locked buffer up to a power of two (`CachingHostAllocator.h` of 2.13):
# one buffer per tensor would take a third more than the tensors. Tensors share buffers of this size
# instead, and only the last buffer is not full.
BUFFER_BYTES = 2**31
ALIGNMENT = 256  # of a tensor in its buffer, bytes


class Offload:
    """Moves the tensors of a learner between its device, where they start, and buffers of the host.

    Parameters and the optimizer stay the same objects. For a learner on the GPU the buffers are
    page-locked: moving a student of 1.7 billion parameters (20 GB) takes about half a second each
    way over PCIe 5. Buffers are kept once made.
    """

    def __init__(self, parameters: Mapping[str, Tensor], adamw: AdamW):
        self._parameters = parameters
        self._adamw = adamw
        self._device = next(iter(parameters.values())).device
        # `weight/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME` or `copy/NAME` → its part of a buffer.
        self._places: dict[str, Tensor] = {}

    def to_host(self) -> None:
        """Drop the gradients, and move weights and moments to the host."""
        self._adamw.zero_grad(set_to_none=True)
        self._make_places(self._tensors())
        for name, parameter in self._parameters.items():
            parameter.data = self._moved(f"weight/{name}", parameter.data)
            state = self._adamw.state[parameter]
            for key in self._moments(state):
                state[key] = self._moved(f"{key}/{name}", state[key])
        if self._device.type == "cuda":
            # Copies to page-locked memory run beside the host: their sources may be freed only
            # after them, and the allocator gives memory back only when it is asked.
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()

    def to_device(self) -> None:
        """Move weights and moments to the device."""
        for parameter in self._parameters.values():
            parameter.data = parameter.data.to(self._device, non_blocking=True, copy=True)
            state = self._adamw.state[parameter]
            for key in self._moments(state):
                state[key] = state[key].to(self._device, non_blocking=True, copy=True)

    def copies(
        self, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """Copies of named weights on the host, in `dtype`, until the next call overwrites them.

        Synchronise the device before reading them.
        """
        tensors: dict[str, Tensor] = {}
        for name, weight in weights:
            tensors[f"copy/{name}"] = weight
        self._make_places(tensors, dtype)
        copies: dict[str, Tensor] = {}
        for key, weight in tensors.items():
            copies[key.removeprefix("copy/")] = self._moved(key, weight.to(dtype))
        return copies

    def _moments(self, state: Mapping[str, Tensor]) -> list[str]:
        """The names of existing moments: none before the first update."""
        return [key for key in MOMENTS if key in state]

    def _tensors(self) -> dict[str, Tensor]:
        """Weights and existing moments, by the keys of their places."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            tensors[f"weight/{name}"] = parameter.data
            state = self._adamw.state[parameter]
            for key in self._moments(state):
                tensors[f"{key}/{name}"] = state[key]
        return tensors

    def _make_places(self, tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> None:
        """Give tensors that have none their places on the host, in `dtype` or else their own."""
        sizes: dict[str, int] = {}
        for key, tensor in tensors.items():
            if key not in self._places:
                sizes[key] = tensor.numel() * (dtype or tensor.dtype).itemsize
        for shared in buffers(sizes):
            end = sum(size for _, size in shared)
            buffer = torch.empty(end, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
            start = 0
            for key, size in shared:
                tensor = tensors[key]
                place = buffer[start : start + sizes[key]].view(dtype or tensor.dtype)
                self._places[key] = place.view(tensor.shape)
                start += size

    def _moved(self, key: str, tensor: Tensor) -> Tensor:
        """Copy a tensor to its place and return that; synchronise the device before reading it."""
        return self._places[key].copy_(tensor, non_blocking=True)


def buffers(sizes: Mapping[str, int]) -> list[list[tuple[str, int]]]:
    """Assign tensors and their aligned bytes to buffers: largest first, into the first with room.

    A buffer holds at most BUFFER_BYTES, or a single larger tensor.
    """
    shared: list[list[tuple[str, int]]] = []
    room: list[int] = []
    for key, size in sorted(sizes.items(), key=lambda item: -item[1]):
        aligned = -(-size // ALIGNMENT) * ALIGNMENT  # rounded up
        place = next((i for i, free in enumerate(room) if free >= aligned), len(shared))
        if place == len(shared):
            shared.append([])
            room.append(max(BUFFER_BYTES, aligned))
        shared[place].append((key, aligned))
        room[place] -= aligned
    return shared
