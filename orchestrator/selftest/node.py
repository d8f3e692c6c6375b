"""Checks the machine itself: driver, the card's free memory and its holders, a compiled kernel.

Only a small bench runs without a GPU. The other checks then report that, and the kernel is built
for an H100 but not run.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress

import torch

from orchestrator.engines.catalog import ENGINES, require
from orchestrator.engines.device import (
    DRIVER,
    MemoryHolder,
    card_gib,
    free_gib,
    has_driver,
    holders,
)
from orchestrator.engines.sglang import toolchain
from orchestrator.selftest.bench import Bench
from orchestrator.selftest.runner import Found

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


def driver(bench: Bench) -> Found:
    """Check that the driver knows torch's CUDA, and that torch sees as many GPUs as a trial needs."""
    if not has_driver() and bench.small:
        return Found("skipped", "no NVIDIA driver here")
    version = driver_version()
    knows = driver_cuda()
    wants = torch.version.cuda
    if wants is None:
        return Found(
            "fail", f"torch {torch.__version__} is a build without CUDA", "make setup TORCH=cuda"
        )
    major = int(wants.split(".")[0])
    newer = f"NVIDIA driver {OLDEST_DRIVER.get(major, 'of this CUDA')} or newer on this machine"
    words = (
        f"driver {version or 'of an unknown version'}, which knows CUDA {knows or '?'}; "
        f"torch wants {wants}"
    )
    if knows is not None and int(knows.split(".")[0]) < major:
        return Found("fail", words, newer)
    here = torch.cuda.device_count()
    asked = bench.runtime.placement.gpus
    if here == 0:
        return _no_gpu(f"{words}; torch sees no GPU", newer)
    words += f"; {here} × {torch.cuda.get_device_name()}"
    if asked > here:
        return Found(
            "fail",
            f"{words}, a trial asks for {asked:g}",
            "runtime.placement.gpus, or a node with more GPUs",
        )
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
    from orchestrator.engines.sglang.one_kernel import build_one_kernel

    began = time.monotonic()
    private.prepare()
    imported = time.monotonic()
    build_one_kernel(None if gpu else HOPPER)
    built = time.monotonic() - imported
    for_whom = "and run" if gpu else "for an H100 and not run"
    return Found(
        "ok",
        f"built in {built:.1f} s {for_whom}",
        numbers={"build_s": built, "import_s": imported - began},
    )


def memory(bench: Bench) -> Found:
    """Check the card's memory: its size, the free part, and the processes that hold the rest."""
    card = card_gib()
    if card is None:
        return Found("skipped", "no GPU here")
    others = [holder for holder in holders() if holder.pid != os.getpid()]
    return held_by_others(card, free_gib(), others)


def held_by_others(card: float, free: float, others: Sequence[MemoryHolder]) -> Found:
    """The finding about a card with `free` GiB free beside this process's context and others."""
    numbers = {"total_gib": card, "free_gib": free}
    words = f"{card:.1f} GiB, {free:.1f} of it free"
    if others:
        words += f"; others there: {', '.join(map(str, others))}"
    if card - free <= CONTEXT_GIB + HELD_SHARE * card:
        return Found("ok", words, numbers=numbers)
    if not others:
        return Found(
            "fail",
            f"{words}; nvidia-smi names no process",
            "another GPU, or end its other processes",
            numbers,
        )
    end = f"end them (kill {' '.join(str(each.pid) for each in others)}), or take another GPU"
    return Found("fail", words, end, numbers)
