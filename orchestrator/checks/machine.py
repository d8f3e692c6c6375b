"""Checks this machine: its cores and memory, its driver and compilers, and what its GPU does.

The checks of a GPU get a `Bench`. On CPUs, for small benches, the same code runs without the
kernels and the page-locked memory that only GPUs have, and a kernel of an engine is built for an
H100 but not run.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

import psutil
import torch
import torch.distributed
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from orchestrator.checks.bench import Bench
from orchestrator.checks.check import Found
from orchestrator.checks.experiment import CheckedSetup
from orchestrator.checks.measures import seconds_of
from orchestrator.config import Experiment, Runtime
from orchestrator.cores import bound_cores, cores_here
from orchestrator.engines.catalog import ENGINES, require
from orchestrator.engines.device import (
    ALLOCATOR,
    DRIVER,
    MemoryHolder,
    card_gib,
    free_gib,
    has_driver,
    holders,
)
from orchestrator.engines.memory import GIB, parameters
from orchestrator.engines.sglang import toolchain
from orchestrator.grading.grader import Grader
from orchestrator.planning.numbers import counted
from orchestrator.policy.objective import token_loss
from orchestrator.tracking.tracker import tracker_function

LAPTOP_GIB = 4.0  # of memory for a sweep of tiny models
SHARED_MEMORY = Path("/dev/shm")
SHARED_GIB = 1.0  # of shared memory on a machine with GPUs

LIBRARY = "libcuda.so.1"  # of the driver, not of CUDA's toolkit
# What cuInit answers where no GPU can be used, from `cuda.h`, with the words for it and the remedy.
NO_GPU = {
    3: ("the driver is not initialised", "the NVIDIA driver: load it (modprobe nvidia nvidia_uvm)"),
    34: (
        "the driver's library is a stub of the toolkit",
        "LD_LIBRARY_PATH without the toolkit's folder of stubs",
    ),
    46: (
        "the GPU is used by another process alone, or cannot be had",
        "its compute mode (nvidia-smi -c 0), or the process that holds it",
    ),
    100: (
        "no GPU is there for this process",
        "--gpus of Slurm or docker, CUDA_VISIBLE_DEVICES, or lspci and dmesg (a GPU off the bus)",
    ),
    101: ("no GPU has this number", "CUDA_VISIBLE_DEVICES, which names a GPU that is not here"),
    802: (
        "the GPUs' links are not set up",
        "the fabric manager of HGX nodes, of the driver's version: "
        "systemctl start nvidia-fabricmanager",
    ),
    803: (
        "the driver's library and its kernel module are of different versions",
        "a restart after the driver's update; in a container the host's library, not its own",
    ),
    804: (
        "a library of CUDA's forward compatibility does not run on this GPU",
        "LD_LIBRARY_PATH without the folder `compat`, or a newer driver",
    ),
    999: (
        "the driver does not say why",
        "dmesg (Xid), nvidia-modprobe -u -c=0 for nvidia_uvm, and at last a restart",
    ),
}
# By CUDA's major version, from NVIDIA's table of minor version compatibility.
OLDEST_DRIVER = {13: 580, 12: 525}
CONTEXT_GIB = 1.0  # a generous bound for a process that has opened the GPU and holds nothing there
HELD_SHARE = 0.02  # of the card: other processes may hold no more
HOPPER = (9, 0)  # the architecture that a kernel is built for without a GPU

PACKED = (5, 1, 64, 130)  # lengths of the sequences that attention is compared on
HEADS, GROUPS, WIDTH = 8, 4, 128
# Numbers of 8 and 24 bits, rounded a few times on the way.
ALLOWED = {torch.bfloat16: 0.03, torch.float32: 1e-4}
PIECE = 2**26  # numbers in one moved tensor
SPARE = 1.25  # of the host's memory: page-locked pieces are rounded up
# Half the speed of PCIe 4; less means a wrong slot or node.
SLOWEST_GB_S = {"offload": 10.0, "collective": 5.0}
SUMMED = {"cuda": 2**26, "cpu": 2**16}  # float32 numbers that two processes add up
ROUNDS = 5
MEASURED = "collective.json"

# Queries (N, heads, D), keys and values (N, groups, D).
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


# --- cores, memory, services ---


def devices(runtime: Runtime) -> Found:
    """Name cores, GPUs and torch."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    words = " ".join([counted(len(gpus), "GPU"), *gpus])
    return Found("ok", f"{counted(cores_here(), 'CPU core')}, {words}; torch {torch.__version__}")


def cores(runtime: Runtime) -> Found:
    """Compare the cores of this process with those that Slurm and Ray count."""
    bound, machine = bound_cores(), os.cpu_count() or 1
    asked = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if asked.isdigit() and int(asked) > bound:
        words = (
            f"bound to {counted(bound, 'core')}, while SLURM_CPUS_PER_TASK={asked}: srun does not "
            f"inherit it from sbatch: srun --cpus-per-task={asked} --cpu-bind=none"
        )
        return Found("fail", words)
    if bound < machine:
        how = f"`ray start` counts all of them without --num-cpus={bound}"
        return Found("ok", f"bound to {bound} of {machine}; {how}")
    return Found("ok", f"bound to none of {machine}")


def memory(runtime: Runtime) -> Found:
    """Check that a sweep of tiny models finds memory."""
    free = available_gib()
    words = f"{free:.1f} GiB free; a laptop sweep wants {LAPTOP_GIB:g}"
    return Found("ok" if free > LAPTOP_GIB else "warn", words)


def available_gib() -> float:
    """The host's available memory. Ignores a container's limit."""
    return psutil.virtual_memory().available / GIB


def grader(runtime: Runtime) -> Found:
    """Grade a right and a wrong answer."""
    with Grader() as judge:
        right = judge.grade("\\frac{1}{2}", "so it is \\boxed{0.5}").correct
        wrong = judge.grade("\\frac{1}{2}", "so it is \\boxed{0.25}").correct
    if right and not wrong:
        return Found("ok", "0.5 is one half and 0.25 is not")
    return Found("fail", "grades wrongly here")


def gradient(runtime: Runtime) -> Found:
    """Compare the default objective's gradient with finite differences, in float64."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(3, 8, generator=generator, dtype=torch.float64).log_softmax(-1)
    agree = torch.autograd.gradcheck(
        lambda x: token_loss("renormalized", x.log_softmax(-1), teacher), logits
    )
    words = "renormalized reverse KL agrees with finite differences"
    return Found("ok" if agree else "fail", words)


def allocator(runtime: Runtime) -> Found:
    """Name the variables of torch's allocator, with which an engine could not free its cache."""
    values = [f"{name}={os.environ[name]}" for name in ALLOCATOR if name in os.environ]
    return Found("ok", f"{' '.join(values)}: kept for trainers; SGLang's engines start without")


def wandb(runtime: Runtime) -> Found:
    """Check that the server of W&B answers, unless nothing is sent there."""
    from orchestrator.tracking.wandb_tracker import chosen_mode, server_url  # imports wandb

    mode = chosen_mode(runtime.wandb)
    if mode == "offline":
        return Found("ok", "offline; log in with `wandb login` to watch online")
    if mode == "disabled":
        return Found("ok", "disabled; nothing is mirrored")
    import requests

    url = server_url()
    try:
        requests.get(f"{url}/healthz", timeout=5)
    except requests.RequestException as error:
        return Found("warn", f"online, but {url} cannot be reached ({type(error).__name__})")
    return Found("ok", f"online, {url} answers")


def tracker(runtime: Runtime) -> Found:
    """Open the tracker of a user; UserError if it is not found or not installed."""
    tracker_function(runtime.tracker)
    return Found("ok", f"{runtime.tracker} shows the runs")


def shared_memory(asked: Experiment) -> Found:
    """Check /dev/shm for Ray's object store and for NCCL, which containers often leave no room."""
    free = shutil.disk_usage(SHARED_MEMORY).free / GIB
    words = f"{free:.1f} GiB free in {SHARED_MEMORY}; Ray's store and NCCL take {SHARED_GIB:g}"
    if free >= SHARED_GIB:
        return Found("ok", words)
    remedy = (
        "docker run --shm-size=8g; in Kubernetes an emptyDir with medium Memory; "
        f"else mount -o remount,size=8G {SHARED_MEMORY}"
    )
    return Found("fail", f"{words}: {remedy}")


# --- driver, compilers, the card ---


def driver(bench: Bench) -> Found:
    """Check that the driver knows torch's CUDA, and that torch sees as many GPUs as a trial needs."""
    if not has_driver() and bench.small:
        return Found("skipped", "no NVIDIA driver here")
    version, knows, wants = driver_version(), driver_cuda(), torch.version.cuda
    if wants is None:
        words = f"torch {torch.__version__} is a build without CUDA"
        return Found("fail", words, "make setup TORCH=cuda")
    major = int(wants.split(".")[0])
    newer = f"NVIDIA driver {OLDEST_DRIVER.get(major, 'of this CUDA')} or newer on this machine"
    words = (
        f"driver {version or 'of an unknown version'}, which knows CUDA {knows or '?'}; "
        f"torch wants {wants}"
    )
    if knows is not None and int(knows.split(".")[0]) < major:
        return Found("fail", words, newer)
    here, asked = torch.cuda.device_count(), bench.runtime.placement.gpus
    if here == 0:
        return _no_gpu(f"{words}; torch sees no GPU", newer)
    words += f"; {here} × {torch.cuda.get_device_name()}"
    if asked > here:
        remedy = "runtime.placement.gpus, or a node with more GPUs"
        return Found("fail", f"{words}, a trial asks for {asked:g}", remedy)
    return Found("ok", words, numbers={"gpus": here})


def _no_gpu(words: str, newer: str) -> Found:
    """The finding about a driver under which torch sees no GPU, by the answer of cuInit."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        words += f"; CUDA_VISIBLE_DEVICES={visible!r}"
    code = initialised()
    if code:
        meaning, remedy = NO_GPU.get(code, ("an error of its own", newer))
        words += f"; cuInit answers {code}: {meaning}"
        # An empty or wrong list hides GPUs from CUDA too, and nothing else then has to be wrong.
        if visible is None or code not in (100, 101):
            return Found("fail", words, remedy, {"cuinit": code})
    if visible is not None:
        return Found("fail", words, "CUDA_VISIBLE_DEVICES, which hides GPUs from this process")
    return Found("fail", words, newer)


def initialised() -> int | None:
    """The answer of cuInit, 0 if it is well; None without the library. Never run on a GPU."""
    with suppress(OSError, AttributeError):
        return int(ctypes.CDLL(LIBRARY).cuInit(0))
    return None


def driver_version() -> str | None:
    """The version of the kernel's NVIDIA module, for example `580.65.06`."""
    with suppress(OSError):
        text = DRIVER.read_text(encoding="utf-8", errors="replace")
        version = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
        return version and version[0]
    return None


def driver_cuda() -> str | None:
    """The newest CUDA that the driver knows, for example `13.0`. Never run on a GPU."""
    version = ctypes.c_int()
    with suppress(OSError, AttributeError):
        if ctypes.CDLL(LIBRARY).cuDriverGetVersion(ctypes.byref(version)) == 0:
            return f"{version.value // 1000}.{version.value % 1000 // 10}"
    return None


def compilers(of: Bench | CheckedSetup) -> Found:
    """Check the compilers with which the setup's sampler builds kernels, if a GPU is here.

    Without them it would stop minutes after its start.
    """
    name = of.setup.engine.sampler
    if not ENGINES[name].tools:
        return Found("skipped", f"{name} samples, which compiles nothing")
    lines = toolchain.missing(os.environ)
    if not lines:
        home, kernels = toolchain.toolkit(os.environ), toolchain.kernel_cache(os.environ)
        return Found("ok", f"nvcc of {home}; compiled kernels are kept in {kernels}")
    parts = [line.rpartition(": ") for line in lines]
    words = f"an engine on a GPU would lack {'; '.join(tool for tool, _, _ in parts)}"
    if not has_driver():
        return Found("skipped", f"nothing is compiled without a GPU; {words}")
    return Found("fail", words, "; ".join(remedy for _, _, remedy in parts))


def kernel(bench: Bench) -> Found:
    """Build one of SGLang's kernels anew, and run it if a GPU is here."""
    name = bench.setup.engine.sampler
    gpu = torch.cuda.is_available()
    if not ENGINES[name].tools:
        return Found("skipped", f"{name} samples, which compiles nothing")
    if not gpu and toolchain.missing(os.environ):
        return Found("skipped", "no compilers here, and no GPU that would need them")
    require("engine.sampler", name)
    # As in an engine's process, except for the cache, which may hold the kernel already.
    for variable, value in toolchain.environment(os.environ).items():
        if value is not None:
            os.environ[variable] = value
    os.environ["SGLANG_JIT_CACHE_DIR"] = str(bench.folder / "kernels")
    from orchestrator.engines.sglang import private

    began = time.monotonic()
    private.prepare()
    imported = time.monotonic()
    private.build_one_kernel(None if gpu else HOPPER)
    built = time.monotonic() - imported
    words = f"built in {built:.1f} s {'and run' if gpu else 'for an H100 and not run'}"
    return Found("ok", words, numbers={"build_s": built, "import_s": imported - began})


def card(bench: Bench) -> Found:
    """Check the card's memory: its size, the free part, and the processes that hold the rest."""
    gib = card_gib()
    if gib is None:
        return Found("skipped", "no GPU here")
    others = [holder for holder in holders() if holder.pid != os.getpid()]
    return held_by_others(gib, free_gib(), others)


def held_by_others(gib: float, free: float, others: Sequence[MemoryHolder]) -> Found:
    """The finding about a card with `free` GiB free beside this process's context and others."""
    numbers = {"total_gib": gib, "free_gib": free}
    words = f"{gib:.1f} GiB, {free:.1f} of it free"
    if others:
        words += f"; others there: {', '.join(map(str, others))}"
    if gib - free <= CONTEXT_GIB + HELD_SHARE * gib:
        return Found("ok", words, numbers=numbers)
    if not others:
        remedy = "another GPU, or end its other processes"
        return Found("fail", f"{words}; nvidia-smi names no process", remedy, numbers)
    end = f"end them (kill {' '.join(str(each.pid) for each in others)}), or take another GPU"
    return Found("fail", words, end, numbers)


# --- attention of packed sequences ---


def attention(bench: Bench) -> Found:
    """Compare attention of packed sequences, and its gradients, with masked attention in float32.

    Never run on a GPU.
    """
    # Here and below: they import transformers, which `kernel` may not load before SGLang, and which
    # takes seconds.
    from orchestrator.engines.common.causal import best_device
    from orchestrator.engines.common.passes import has_packed_kernel, packed_attention

    device = best_device()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    if device.type == "cuda" and not has_packed_kernel(device, dtype):
        return Found("skipped", "this GPU has no kernel for packed sequences, so they are padded")
    bounds = torch.tensor([0, *accumulate(PACKED)], dtype=torch.int32, device=device)

    def packed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = _heads_first(query), _heads_first(key), _heads_first(value)
        return packed_attention(query, key, value, bounds, max(PACKED), None)[0]

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
    inputs = [_heads_first(each) for each in (query, key, value)]
    output = scaled_dot_product_attention(*inputs, attn_mask=mask, enable_gqa=True)
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


# --- memory to the host and back ---


def offload(bench: Bench) -> Found:
    """Move a learner's state of the student's size to the host and back.

    On a GPU twice, since the first move makes the buffers.
    """
    from orchestrator.engines.common.causal import best_device
    from orchestrator.engines.torch.trainer import Offload

    device = best_device()
    count = parameters(bench.declared.student.shape, bench.declared.vocabulary.size)
    moved_bytes = 3 * 4 * count  # weights and two moments, in float32
    needed, available = moved_bytes * SPARE / GIB, available_gib()
    if available < needed:
        words = (
            f"{available:.1f} GiB of the host's memory are available, "
            f"a learner's state takes {needed:.1f}"
        )
        return Found("fail", words, "more memory for this job (Slurm: --mem), or a smaller student")
    pieces, adamw = _learners_state(count, device)
    moved = Offload(pieces, adamw)
    before = _sums(pieces, adamw)
    first = seconds_of(moved.to_host)
    back = seconds_of(moved.to_device)
    out = first
    if device.type == "cuda":
        out = seconds_of(moved.to_host)
        back = seconds_of(moved.to_device)
    if _sums(pieces, adamw) != before:
        remedy = "another node: its memory or its bus is broken"
        return Found("fail", "the learner's state came back changed", remedy)
    gib = moved_bytes / GIB
    if device.type != "cuda":
        words = f"{gib:.2g} GiB came back as they were; without a GPU there is no speed to tell"
        return Found("ok", words)
    speeds = {"out_gb_s": moved_bytes / out / 1e9, "back_gb_s": moved_bytes / back / 1e9}
    words = f"{gib:.1f} GiB, {speeds['out_gb_s']:.0f} GB/s out and {speeds['back_gb_s']:.0f} back, "
    words += f"the first time in {first:.1f} s with its buffers"
    slow = min(speeds.values()) < SLOWEST_GB_S["offload"]
    return Found("warn" if slow else "ok", words, numbers={"gib": gib, "first_s": first, **speeds})


def _learners_state(
    count: int, device: torch.device
) -> tuple[dict[str, torch.nn.Parameter], torch.optim.AdamW]:
    """Weights of `count` numbers in pieces, and an optimizer with their moments."""
    pieces: dict[str, torch.nn.Parameter] = {}
    for start in range(0, count, PIECE):
        numbers = torch.randn(min(PIECE, count - start), device=device)
        pieces[str(start)] = torch.nn.Parameter(numbers)
    adamw = torch.optim.AdamW(pieces.values())
    for piece in pieces.values():
        moments = {"exp_avg": piece.detach() + 1, "exp_avg_sq": piece.detach() + 2}
        adamw.state[piece] = {"step": torch.zeros(()), **moments}
    return pieces, adamw


def _sums(pieces: dict[str, torch.nn.Parameter], adamw: torch.optim.AdamW) -> list[float]:
    """Sums of all parts of the state, which reveal a change anywhere."""
    sums: list[float] = []
    for piece in pieces.values():
        state = adamw.state[piece]
        for part in (piece.detach(), state["exp_avg"], state["exp_avg_sq"]):
            sums.append(float(part.double().sum()))
    return sums


# --- a sum of two GPUs ---


def collective(bench: Bench) -> Found:
    """Let two processes add numbers up: over NCCL with two GPUs, over gloo without any."""
    gpus = torch.cuda.device_count()
    if gpus == 1:
        return Found("skipped", "one GPU here")
    kind, backend = ("cuda", "nccl") if gpus else ("cpu", "gloo")
    os.environ |= {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN"}
    context = multiprocessing.get_context("spawn")
    pair = []
    for rank in range(2):
        arguments = (rank, kind, backend, str(bench.folder))
        pair.append(context.Process(target=add_up, args=arguments))
        pair[rank].start()
    for process in pair:
        process.join()
    if any(process.exitcode for process in pair):
        codes = " and ".join(str(process.exitcode) for process in pair)
        return Found("fail", f"{backend}: its processes ended with {codes}")
    measured = json.loads((bench.folder / MEASURED).read_text(encoding="utf-8"))
    speed = measured["bytes"] / measured["seconds"] / 1e9
    words = f"two processes over {backend} agree, {speed:.3g} GB/s"
    slow = bool(gpus) and speed < SLOWEST_GB_S["collective"]
    return Found("warn" if slow else "ok", words, numbers={"gb_s": speed})


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
    rounds = [seconds_of(lambda: torch.distributed.all_reduce(numbers)) for _ in range(ROUNDS)]
    torch.distributed.destroy_process_group()
    if rank == 0:
        measured = {"bytes": numbers.nbytes, "seconds": sorted(rounds)[ROUNDS // 2]}
        (Path(folder) / MEASURED).write_text(json.dumps(measured), encoding="utf-8")
