"""One of two processes that add numbers up over NCCL or gloo. Imports only torch, to start quickly."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
import torch.distributed

SUMMED = {"cuda": 2**26, "cpu": 2**16}  # float32 numbers
ROUNDS = 5
MEASURED = "collective.json"


def add_up(rank: int, kind: str, backend: str, folder: str) -> None:
    """Add up as process `rank` of two, on GPU `rank` if `kind` is cuda.

    The first process writes bytes and seconds. Raises RuntimeError if the sum is wrong. NCCL has
    never been run.
    """
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(
        backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    numbers = torch.full((SUMMED[kind],), 1.0 + rank, device=device)
    torch.distributed.all_reduce(numbers)
    if not bool((numbers == 3).all()):
        raise RuntimeError(f"1 + 2 is {numbers.unique().tolist()[:4]} over {backend}")
    seconds: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        torch.distributed.all_reduce(numbers)
        if kind == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    torch.distributed.destroy_process_group()
    if rank == 0:
        measured = {"bytes": numbers.nbytes, "seconds": sorted(seconds)[ROUNDS // 2]}
        (Path(folder) / MEASURED).write_text(json.dumps(measured), encoding="utf-8")
