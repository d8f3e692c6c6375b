"""Digests of weights, tensor by tensor, by which a sampler's weights are told from any others.

The trainer digests the tensors that it exports, and a sampler those that it holds after loading.
Imports no transformers: SGLang's processes read this file before torchvision can be found, and
transformers looks for torchvision only once (`engines.sglang.private`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

THREADS = 4  # hashing needs no lock of Python's, and weights are gigabytes
DIGITS = 16  # of the sha256 of a tensor


def tensor_digest(tensor: Tensor) -> str:
    """DIGITS hex digits of the sha256 of a tensor's bytes, row by row, on any device."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()[:DIGITS]


def digests_of(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    """The digest of each tensor by its name. At most THREADS tensors are copied to the host at once."""
    named = list(tensors)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="digests") as pool:
        digests = list(pool.map(tensor_digest, (tensor for _, tensor in named)))
    return dict(zip((name for name, _ in named), digests, strict=True))
