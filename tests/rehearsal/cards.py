"""GPUs by what programs ask them for, and a process that pretends to have one. Nothing is computed
on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

GIB = 2**30
CONTEXT_GIB = 0.5  # what CUDA itself takes of a card in each process


@dataclass(frozen=True)
class Card:
    """A GPU. `gib` is the memory that torch reports, `shared_kib` the shared memory that a kernel
    may ask for.
    """

    name: str
    gib: float
    capability: tuple[int, int]
    processors: int
    shared_kib: int


CARDS = {
    "H100-80GB": Card("NVIDIA H100 80GB HBM3", 79.1, (9, 0), 132, 227),
    "A100-40GB": Card("NVIDIA A100-SXM4-40GB", 39.4, (8, 0), 108, 163),
    "B200": Card("NVIDIA B200", 178.4, (10, 0), 148, 227),
}


def pretend(card: Card) -> None:
    """Let torch tell this process that it has one such GPU, with nothing else on it.

    That cannot be taken back, since libraries keep the answers that they get when they are
    imported. So a process of its own calls this, before it imports them.
    """
    cuda: Any = torch.cuda
    total = int(card.gib * GIB)
    major, minor = card.capability
    properties = SimpleNamespace(
        name=card.name,
        major=major,
        minor=minor,
        total_memory=total,
        multi_processor_count=card.processors,
        warp_size=32,
        shared_memory_per_block_optin=card.shared_kib * 1024,
        is_integrated=False,
        gcnArchName="",
    )
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_name = lambda *_: card.name
    cuda.get_device_capability = lambda *_: card.capability
    cuda.get_device_properties = lambda *_: properties
    cuda.mem_get_info = lambda *_: (total - int(CONTEXT_GIB * GIB), total)
    version: Any = torch.version
    version.cuda = "13.0"
