"""A learner's weights and AdamW moments, moved out of the GPU's memory into the host's while others use the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.optim import AdamW

MOMENTS = ("exp_avg", "exp_avg_sq")


class Offload:
    """Where the tensors of a learner are: on its device, where they are at first, or in buffers of the host.

    Parameters and the optimizer stay the same objects. Of a learner on the GPU the buffers are page-locked: a student
    of 1.7 billion parameters (20 GB) then takes about half a second each way over PCIe 5. They are kept, once made.
    """

    def __init__(self, parameters: Mapping[str, Tensor], adamw: AdamW):
        self._parameters, self._adamw = parameters, adamw
        self._device = next(iter(parameters.values())).device
        self._buffers: dict[str, Tensor] = {}

    def to_host(self) -> None:
        """Let go of gradients, and move all else to the host."""
        self._adamw.zero_grad(set_to_none=True)
        for name, parameter in self._parameters.items():
            parameter.data = self._buffered(f"weight/{name}", parameter.data)
            state = self._adamw.state[parameter]
            for key in self._moments(state):
                state[key] = self._buffered(f"{key}/{name}", state[key])
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # the copies are made, and what they were made from is free
            torch.cuda.empty_cache()

    def to_device(self) -> None:
        """Move all of it to the device."""
        for parameter in self._parameters.values():
            parameter.data = parameter.data.to(self._device, non_blocking=True, copy=True)
            state = self._adamw.state[parameter]
            for key in self._moments(state):
                state[key] = state[key].to(self._device, non_blocking=True, copy=True)

    def _moments(self, state: Mapping[str, Tensor]) -> Iterator[str]:
        """Those that are there: none before the first update."""
        return (key for key in MOMENTS if key in state)

    def _buffered(self, key: str, tensor: Tensor) -> Tensor:
        """The tensor's values in its buffer; they are there once the device has been waited for."""
        if key not in self._buffers:
            self._buffers[key] = torch.empty_like(tensor, device="cpu", pin_memory=self._device.type == "cuda")
        return self._buffers[key].copy_(tensor, non_blocking=True)
