"""Checks a device: attention of packed sequences, memory to the host and back, a sum of two GPUs.

On CPUs, for small benches, the same code runs without the kernels and the page-locked memory that
only GPUs have.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from orchestrator.engines.common.causal import best_device
from orchestrator.engines.common.passes import has_packed_kernel, packed_attention
from orchestrator.engines.common.store import Offload
from orchestrator.engines.memory import GIB, parameters
from orchestrator.selftest.addition import MEASURED, add_up
from orchestrator.selftest.bench import Bench
from orchestrator.selftest.runner import Found

PACKED = (5, 1, 64, 130)  # lengths of the sequences that attention is compared on
HEADS, GROUPS, WIDTH = 8, 4, 128
# Numbers of 8 and 24 bits, rounded a few times on the way.
ALLOWED = {torch.bfloat16: 0.03, torch.float32: 1e-4}
PIECE = 2**26  # numbers in one moved tensor
SPARE = 1.25  # of the host's memory: page-locked pieces are rounded up
# Half the speed of PCIe 4; less means a wrong slot or node.
SLOWEST_GB_S = {"offload": 10.0, "collective": 5.0}

# Queries (N, heads, D), keys and values (N, groups, D).
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def attention(bench: Bench) -> Found:
    """Compare attention of packed sequences, and its gradients, with masked attention in float32.

    Never run on a GPU.
    """
    device = best_device()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    if device.type == "cuda" and not has_packed_kernel(device, dtype):
        return Found("skipped", "this GPU has no kernel for packed sequences, so they are padded")
    bounds = torch.tensor([0, *accumulate(PACKED)], dtype=torch.int32, device=device)

    def packed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return packed_attention(
            _heads_first(query),
            _heads_first(key),
            _heads_first(value),
            bounds,
            max(PACKED),
            None,
        )[0]

    difference = largest_difference(packed, masked_attention, device, dtype)
    allowed = ALLOWED[dtype]
    words = (
        f"packed sequences are at most {difference:.2g} apart from masked ones, "
        f"{allowed:g} allowed in {dtype}"
    )
    verdict = "ok" if difference <= allowed else "fail"
    return Found(verdict, words, numbers={"difference": difference})


def _heads_first(values: Tensor) -> Tensor:
    """(N, heads, D) → (1, heads, N, D)."""
    return values.transpose(0, 1)[None]


def masked_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention (N, heads, D) within each packed sequence, by a mask over all N positions."""
    sequence = torch.repeat_interleave(torch.arange(len(PACKED)), torch.tensor(PACKED))
    sequence = sequence.to(query.device)
    mask = (sequence[:, None] == sequence[None]).tril()
    output = scaled_dot_product_attention(
        _heads_first(query),
        _heads_first(key),
        _heads_first(value),
        attn_mask=mask,
        enable_gqa=True,
    )
    return output[0].transpose(0, 1)


def largest_difference(
    one: Attention, reference: Attention, device: torch.device, dtype: torch.dtype
) -> float:
    """The largest difference between `one` in `dtype` and `reference` in float32.

    Outputs and gradients are compared. A difference counts as a share of 1 + the size of the
    number, so that rounding weighs the same everywhere.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = [(sum(PACKED), heads, WIDTH) for heads in (HEADS, GROUPS, GROUPS, HEADS)]
    *inputs, weight = [
        torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes
    ]

    def outputs(attend: Attention, precision: torch.dtype) -> list[Tensor]:
        leaves = [each.to(precision, copy=True).requires_grad_() for each in inputs]
        output = attend(*leaves)
        (output * weight.to(precision)).sum().backward()
        return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    largest: list[Tensor] = []
    for here, there in zip(outputs(one, dtype), outputs(reference, torch.float32), strict=True):
        largest.append(((here.float() - there).abs() / (1 + there.abs())).max())
    return float(torch.stack(largest).max())  # torch's maximum keeps a NaN, Python's may lose it


def offload(bench: Bench) -> Found:
    """Move a learner's state of the student's size to the host and back.

    On a GPU twice, since the first move makes the buffers.
    """
    device = best_device()
    count = parameters(bench.declared.student.shape, bench.declared.vocabulary.size)
    needed = 3 * 4 * count * SPARE / GIB
    available = available_gib()
    if available is not None and available < needed:
        words = (
            f"{available:.1f} GiB of the host's memory are available, "
            f"a learner's state takes {needed:.1f}"
        )
        return Found("fail", words, "more memory for this job (Slurm: --mem), or a smaller student")
    pieces = {}
    for start in range(0, count, PIECE):
        pieces[str(start)] = torch.nn.Parameter(
            torch.randn(min(PIECE, count - start), device=device)
        )
    adamw = torch.optim.AdamW(pieces.values())
    for piece in pieces.values():
        state = {
            "step": torch.zeros(()),
            "exp_avg": piece.detach() + 1,
            "exp_avg_sq": piece.detach() + 2,
        }
        adamw.state[piece] = state
    moved = Offload(pieces, adamw)
    sums = _sums(pieces, adamw)
    first = _timed(moved.to_host)
    back = _timed(moved.to_device)
    out = first
    if device.type == "cuda":
        out = _timed(moved.to_host)
        back = _timed(moved.to_device)
    if _sums(pieces, adamw) != sums:
        return Found(
            "fail",
            "the learner's state came back changed",
            "another node: its memory or its bus is broken",
        )
    gib = 3 * 4 * count / GIB
    if device.type != "cuda":
        return Found(
            "ok", f"{gib:.2g} GiB came back as they were; without a GPU there is no speed to tell"
        )
    speeds = {
        "out_gb_s": 3 * 4 * count / out / 1e9,
        "back_gb_s": 3 * 4 * count / back / 1e9,
    }
    words = f"{gib:.1f} GiB, {speeds['out_gb_s']:.0f} GB/s out and {speeds['back_gb_s']:.0f} back, "
    words += f"the first time in {first:.1f} s with its buffers"
    slow = min(speeds.values()) < SLOWEST_GB_S["offload"]
    return Found("warn" if slow else "ok", words, numbers={"gib": gib, "first_s": first, **speeds})


def _sums(pieces: dict[str, torch.nn.Parameter], adamw: torch.optim.AdamW) -> list[float]:
    """Sums of all parts of the state, which reveal a change anywhere."""
    sums: list[float] = []
    for piece in pieces.values():
        state = adamw.state[piece]
        for part in (piece.detach(), state["exp_avg"], state["exp_avg_sq"]):
            sums.append(float(part.double().sum()))
    return sums


def _timed(run: Callable[[], object]) -> float:
    """Seconds of a call, including the device's queue."""
    began = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def available_gib(meminfo: Path = Path("/proc/meminfo")) -> float | None:
    """The host's available memory; None if the system does not say. Ignores a container's limit."""
    if meminfo.is_file():
        for line in meminfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 / GIB
    return None


def collective(bench: Bench) -> Found:
    """Let two processes add numbers up: over NCCL with two GPUs, over gloo without any."""
    gpus = torch.cuda.device_count()
    if gpus == 1:
        return Found("skipped", "one GPU here")
    kind = "cuda" if gpus else "cpu"
    backend = "nccl" if gpus else "gloo"
    os.environ |= {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN"}
    context = multiprocessing.get_context("spawn")
    arguments = (kind, backend, str(bench.folder))
    first = context.Process(target=add_up, args=(0, *arguments))
    second = context.Process(target=add_up, args=(1, *arguments))
    first.start()
    second.start()
    first.join()
    second.join()
    if first.exitcode or second.exitcode:
        codes = f"{first.exitcode} and {second.exitcode}"
        return Found("fail", f"{backend}: its processes ended with {codes}")
    measured = json.loads((bench.folder / MEASURED).read_text(encoding="utf-8"))
    speed = measured["bytes"] / measured["seconds"] / 1e9
    words = f"two processes over {backend} agree, {speed:.3g} GB/s"
    slow = bool(gpus) and speed < SLOWEST_GB_S["collective"]
    return Found("warn" if slow else "ok", words, numbers={"gb_s": speed})
