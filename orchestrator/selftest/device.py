"""Checks of a device: attention of packed sequences, memory to the host and back, and a sum over
two GPUs.

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

from orchestrator.engines.common.attention import has_packed_kernel, packed_attention
from orchestrator.engines.common.causal import best_device
from orchestrator.engines.common.offload import Offload
from orchestrator.engines.memory import GIB, parameters
from orchestrator.selftest.addition import MEASURED, add_up
from orchestrator.selftest.bench import Bench
from orchestrator.selftest.runner import Found

PACKED = (5, 1, 64, 130)  # lengths of the sequences that attention is compared on
HEADS, GROUPS, WIDTH = 8, 4, 128
ALLOWED = {
    torch.bfloat16: 0.03,
    torch.float32: 1e-4,
}  # numbers of 8 and 24 bits, rounded a few times on the way
PIECE = 2**26  # numbers in one moved tensor
SPARE = 1.25  # of the host's memory: page-locked pieces are rounded up
SLOWEST_GB_S = {
    "offload": 10.0,
    "collective": 5.0,
}  # half of what PCIe 4 gives; less is a wrong slot or node


def attention(bench: Bench) -> Found:
    """Compare attention of packed sequences with masked attention in float32, and gradients. Never
    run on a GPU.
    """
    device = best_device()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    if device.type == "cuda" and not has_packed_kernel(device, dtype):
        return Found("skipped", "this GPU has no kernel for packed sequences, so they are padded")
    bounds = torch.tensor([0, *accumulate(PACKED)], dtype=torch.int32, device=device)

    def packed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (
            each.transpose(0, 1)[None] for each in (query, key, value)
        )  # heads first
        return packed_attention(query, key, value, bounds, max(PACKED), None)[0]

    difference, allowed = (
        largest_difference(packed, masked_attention, device, dtype),
        ALLOWED[dtype],
    )
    words = f"packed sequences are at most {difference:.2g} apart from masked ones, {allowed:g} allowed in {dtype}"
    return Found(
        "ok" if difference <= allowed else "fail", words, numbers={"difference": difference}
    )


Attention = Callable[
    [Tensor, Tensor, Tensor], Tensor
]  # queries (N, heads, D), keys and values (N, groups, D)


def masked_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention (N, heads, D) within each of the packed sequences, by one mask over all N
    positions.
    """
    sequence = torch.repeat_interleave(torch.arange(len(PACKED)), torch.tensor(PACKED)).to(
        query.device
    )
    mask = (sequence[:, None] == sequence[None]).tril()
    query, key, value = (each.transpose(0, 1)[None] for each in (query, key, value))
    output = scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    return output[0].transpose(0, 1)


def largest_difference(
    one: Attention, reference: Attention, device: torch.device, dtype: torch.dtype
) -> float:
    """The largest difference of outputs and gradients between `one` in `dtype` and `reference` in
    float32.

    A difference counts as a share of 1 + the size of the number, so that rounding weighs the same
    everywhere.
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

    pairs = zip(outputs(one, dtype), outputs(reference, torch.float32), strict=True)
    return max(
        float(((here.float() - there).abs() / (1 + there.abs())).max()) for here, there in pairs
    )


def offload(bench: Bench) -> Found:
    """Move a learner's state of the student's size to the host and back; twice, since the first
    makes buffers.
    """
    device = best_device()
    count = parameters(bench.declared.student.shape, bench.declared.vocabulary.size)
    needed, available = 3 * 4 * count * SPARE / GIB, available_gib()
    if available is not None and available < needed:
        words = f"{available:.1f} GiB of the host's memory are available, a learner's state takes {needed:.1f}"
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
    first, out, back = _timed(moved.to_host), 0.0, _timed(moved.to_device)
    if device.type == "cuda":
        out, back = _timed(moved.to_host), _timed(moved.to_device)
    if _sums(pieces, adamw) != sums:
        return Found(
            "fail",
            "the learner's state came back changed",
            "another node: its memory or its bus is broken",
        )
    gib, speeds = 3 * 4 * count / GIB, {}
    if device.type != "cuda":
        return Found(
            "ok", f"{gib:.2g} GiB came back as they were; without a GPU there is no speed to tell"
        )
    for name, seconds in (("out_gb_s", out), ("back_gb_s", back)):
        speeds[name] = 3 * 4 * count / seconds / 1e9
    words = f"{gib:.1f} GiB, {speeds['out_gb_s']:.0f} GB/s out and {speeds['back_gb_s']:.0f} back, "
    words += f"the first time in {first:.1f} s with its buffers"
    slow = min(speeds.values()) < SLOWEST_GB_S["offload"]
    return Found("warn" if slow else "ok", words, numbers={"gib": gib, "first_s": first, **speeds})


def _sums(pieces: dict[str, torch.nn.Parameter], adamw: torch.optim.AdamW) -> list[float]:
    """Sums of all parts of the state, which reveal a change anywhere."""
    sums = []
    for piece in pieces.values():
        for each in (
            piece.detach(),
            adamw.state[piece]["exp_avg"],
            adamw.state[piece]["exp_avg_sq"],
        ):
            sums.append(float(each.double().sum()))
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
    both = [
        context.Process(target=add_up, args=(rank, kind, backend, str(bench.folder)))
        for rank in range(2)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join()
    codes = [process.exitcode for process in both]
    if any(codes):
        return Found("fail", f"{backend}: its processes ended with {codes[0]} and {codes[1]}")
    measured = json.loads((bench.folder / MEASURED).read_text(encoding="utf-8"))
    speed = measured["bytes"] / measured["seconds"] / 1e9
    words = f"two processes over {backend} agree, {speed:.3g} GB/s"
    slow = bool(gpus) and speed < SLOWEST_GB_S["collective"]
    return Found("warn" if slow else "ok", words, numbers={"gb_s": speed})
