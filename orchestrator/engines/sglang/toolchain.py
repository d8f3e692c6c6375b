"""Finds CUDA's libraries and SGLang's compilers for NVIDIA GPUs. No torch, no SGLang.

SGLang compiles kernels on demand, with nvcc and a C++ compiler run by ninja. Triton, which SGLang
also calls, compiles C against Python's headers. All of them cache their builds. Their searches were
read in SGLang 0.5.20 (`sglang/kernels/jit/utils/compile/toolchain.py`, `sglang/srt/environ.py`),
flashinfer 0.6.18 (`flashinfer/jit/cpp_ext.py`) and triton 3.7.1 (`triton/runtime/build.py`). The
first two take CUDA_HOME, else the parent of the folder of the first `nvcc` on PATH, even if that
file only calls an nvcc elsewhere.

An engine that gives its cache's memory back preloads a library of torch_memory_saver 0.0.10. That
library needs `libcudart.so.13` and names no folder for it. torch finds the one of NVIDIA's wheels by
a path of its own; without LD_LIBRARY_PATH the loader ends the engine's scheduler with code 127 on a
machine that has no CUDA 13 of its own.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.engines.device import ALLOCATOR
from orchestrator.errors import refuse
from orchestrator.rules import AttentionName, LogitsKernel

CUDA = 13  # the release of the torch that `docker/lock/runtime.txt` pins for GPUs
SYSTEM = Path("/usr/local")  # where NVIDIA's installers put `cuda` and `cuda-13.0`
WHEEL, FOLDER = "nvidia-cuda-nvcc", "nvidia/cu13"  # the distribution with nvcc, and its folder
# The distribution with CUDA's runtime, which torch's build for GPUs requires, and the library.
RUNTIME, LIBRARY = "nvidia-cuda-runtime", f"libcudart.so.{CUDA}"
COMPILE_S = 60.0  # for an almost empty file, on a busy machine
# The parts of a toolkit that every kernel of SGLang needs.
PARTS = (
    "bin/nvcc",
    "nvvm/bin/cicc",
    "include/cuda.h",
    "include/cuda_runtime.h",
    "include/crt/host_config.h",
    "include/cccl/cub/cub.cuh",
    "lib64/libcudart.so",
)


def environment(environ: Mapping[str, str], system: Path = SYSTEM) -> dict[str, str | None]:
    """Variables of an engine's process, to find compilers, kernels and CUDA's libraries.

    They are added to `environ`; those that are None are taken out of it.

    Engines share one folder of kernels: SGLANG_CACHE_DIR, or SGLang's default. SGLang itself puts
    the caches of Triton, Inductor and flashinfer there, but not the cache of its own kernels.
    Without a usable toolkit CUDA_HOME is unchanged.
    """
    cache = kernel_cache(environ)
    variables: dict[str, str | None] = {
        "SGLANG_CACHE_DIR": str(cache),
        "SGLANG_JIT_CACHE_DIR": environ.get("SGLANG_JIT_CACHE_DIR") or str(cache / "jit"),
        **dict.fromkeys(ALLOCATOR),
    }
    # ninja comes as a wheel, and the virtual environment that holds it may not be on PATH.
    folders = [str(Path(sys.executable).parent)]
    home = toolkit(environ, system)
    if home is not None:
        variables["CUDA_HOME"] = str(home)
        folders.insert(0, str(home / "bin"))
    variables["PATH"] = os.pathsep.join([*folders, environ.get("PATH", os.defpath)])
    libraries = _libraries(home)
    if libraries is not None:
        others = filter(None, [environ.get("LD_LIBRARY_PATH")])
        variables["LD_LIBRARY_PATH"] = os.pathsep.join([str(libraries), *others])
    return variables


def _libraries(home: Path | None) -> Path | None:
    """The folder of CUDA's runtime: of the wheel that torch loads, else of the toolkit."""
    folders = [] if home is None else [home / "lib64"]
    wheel = _in_wheel(RUNTIME)
    if wheel is not None:
        folders.insert(0, wheel / "lib")
    return next((folder for folder in folders if (folder / LIBRARY).is_file()), None)


def kernel_cache(environ: Mapping[str, str]) -> Path:
    """The folder for compiled kernels."""
    return Path(environ.get("SGLANG_CACHE_DIR") or "~/.cache/sglang").expanduser()


def toolkit(environ: Mapping[str, str], system: Path = SYSTEM) -> Path | None:
    """The first complete toolkit of this CUDA: from the environment, the system, or the wheels."""
    for folder in _candidates(environ, system):
        if defect(folder) is None:
            return folder
    return None


def _candidates(environ: Mapping[str, str], system: Path) -> Iterator[Path]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            yield Path(environ[name])
    on_path = shutil.which("nvcc", path=environ.get("PATH", os.defpath))
    if on_path is not None:
        yield Path(on_path).resolve().parent.parent
    yield from system.glob("cuda")
    yield from sorted(system.glob(f"cuda-{CUDA}*"), reverse=True)
    wheel = _in_wheel(WHEEL)
    if wheel is not None:
        yield wheel


def _in_wheel(name: str) -> Path | None:
    """CUDA's folder of one of NVIDIA's wheels; None if it is not installed."""
    try:
        return Path(str(importlib.metadata.distribution(name).locate_file(FOLDER)))
    except importlib.metadata.PackageNotFoundError:
        return None


def defect(folder: Path) -> str | None:
    """Describe why the toolkit in `folder` cannot build kernels; None if complete. Runs nothing."""
    for part in PARTS:
        if not (folder / part).is_file():
            return f"{folder} has no {part}"
    if not os.access(folder / "bin" / "nvcc", os.X_OK):
        return f"{folder}/bin/nvcc cannot be run"
    header = (folder / "include" / "cuda.h").read_text(encoding="utf-8", errors="replace")
    version = re.search(r"^#define\s+CUDA_VERSION\s+(\d+)", header, flags=re.MULTILINE)
    if version is None or int(version[1]) // 1000 != CUDA:
        return f"{folder} is not of CUDA {CUDA}"
    return None


def missing(environ: Mapping[str, str], system: Path = SYSTEM) -> list[str]:
    """List the tools that a GPU engine lacks here, each with its remedy. Runs the C++ compiler."""
    lines: list[str] = []
    if toolkit(environ, system) is None:
        defects = dict.fromkeys(filter(None, map(defect, _candidates(environ, system))))
        why = f" ({'; '.join(defects)})" if defects else ""
        lines.append(f"nvcc of CUDA {CUDA}{why}: make setup-engines installs it, or set CUDA_HOME")
    compiler = environ.get("CXX", "c++")
    if not knows_cpp20(compiler, environ):
        lines.append(f"a C++20 compiler ({compiler}): apt-get install g++, version 11 or newer")
    if shutil.which(environ.get("CC", "gcc"), path=environ.get("PATH", os.defpath)) is None:
        lines.append(f"a C compiler ({environ.get('CC', 'gcc')}): apt-get install gcc")
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").is_file():
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        lines.append(f"{headers}/Python.h: apt-get install {python}-dev")
    if shutil.which("ninja", path=environment(environ, system)["PATH"]) is None:
        lines.append("ninja: make setup-engines installs it")
    if not _can_write(kernel_cache(environ)):
        lines.append(
            f"a folder for kernels that can be written to, not {kernel_cache(environ)}: "
            "set SGLANG_CACHE_DIR"
        )
    return lines


def knows_cpp20(compiler: str, environ: Mapping[str, str]) -> bool:
    """Whether a compiler exists and compiles a line that needs C++20 and its standard library."""
    program = shutil.which(compiler, path=environ.get("PATH", os.defpath))
    if program is None:
        return False
    command = [program, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    line = b"#include <concepts>\ntemplate <std::integral T> T same(T x) { return x; }\n"
    try:
        done = subprocess.run(
            command, input=line, capture_output=True, timeout=COMPILE_S, env=environ, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _can_write(folder: Path) -> bool:
    """Whether a folder, or its nearest existing ancestor, is writable."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


# --- chooses an engine's kernels of attention, and those that draw from its logits ---
#
# SGLang chooses attention by the GPU alone, not always right for us.
#
# SGLang 0.5.20 takes (`get_default_attn_backend` in its `arg_groups/model_override_base.py`):
#
# | GPU | kernels | dtypes | tokens of a cache's page |
# |---|---|---|---|
# | sm90: H100, H200 | fa3 | 16 bit | 1 |
# | sm100: B200 | trtllm_mha | 16 bit | 64, whatever the setting |
# | others: A100 (sm80), L40S (sm89) | flashinfer | 16 bit | 1 |
#
# None of them takes float32; Triton's do. Blending writes the cache slot by slot and was never tried
# with larger pages.
#
# In float32 with heads of width 128, Triton's prefill needs 128 KiB of shared memory on an H100, and
# 192 KiB on an A100, which has 163. Full-size pairs therefore run in bfloat16 there. The narrow heads
# of embedded pairs fit everywhere.


Capability = tuple[int, int]  # of a GPU: (9, 0) is sm90
KEY = "runtime.attention_backend"
LOGITS_KEY = "runtime.logits_kernel"


def attention_backend(
    asked: AttentionName | None, dtype: str, capability: Capability | None, blends: bool = False
) -> str | None:
    """SGLang's name of the kernels, or None if SGLang chooses well. UserError for invalid choices.

    Without a GPU (`capability` None) the kernels are torch's, or Triton's in its interpreter: the
    GPU's code without the hardware, about 40 times slower.
    """
    if capability is None:
        if asked not in (None, "triton"):
            raise refuse(KEY, asked, "triton, or nothing, on a machine without a GPU")
        return asked or "torch_native"
    if dtype == "float32":
        if asked not in (None, "triton"):
            raise refuse(
                KEY, asked, "triton with engine.dtype=float32, which other kernels do not take"
            )
        return "triton"
    if asked is None and blends and capability[0] == 10:
        return "triton"  # SGLang's choice there has pages of 64 tokens
    return asked


def draws_by_kernel(
    asked: LogitsKernel | None, attention: str | None, capability: Capability | None, shards: int
) -> bool:
    """Whether Triton draws from the logits. UserError for a choice that cannot run.

    Without a GPU Triton's interpreter draws where it also computes attention, if asked. Shards
    agree on a token before they record it, which only torch's operations do.
    """
    if asked != "triton":
        return asked is None and capability is not None and shards == 1
    if shards > 1:
        raise refuse(LOGITS_KEY, asked, "torch, or nothing, where several GPUs sample together")
    if capability is None and attention != "triton":
        raise refuse(LOGITS_KEY, asked, "torch, or nothing, on a machine without a GPU")
    return True


def kernel_environment(attention: str | None, dtype: str, gpu: bool) -> dict[str, str]:
    """Environment variables for Triton in an engine's processes, which it reads when imported."""
    variables: dict[str, str] = {}
    if dtype == "float32":
        variables["TRITON_F32_DEFAULT"] = "ieee"  # else a GPU rounds factors to TF32's 10 bits
    if attention == "triton" and not gpu:
        variables["TRITON_INTERPRET"] = "1"
    return variables
