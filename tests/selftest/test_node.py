"""What is told of driver, compilers and card, from what the system would say on a machine with a
GPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from orchestrator.engines import device
from orchestrator.engines.device import MemoryHolder
from orchestrator.engines.sglang import toolchain
from orchestrator.selftest import compilers, node
from orchestrator.selftest.catalog import CHECKS
from orchestrator.selftest.node import held_by_others
from orchestrator.selftest.runner import run_checks
from tests.engines.installed import skip_without
from tests.selftest.benches import small_bench

VERSION_FILE = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder@U16)  Sun Jul 20 UTC 2025
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An H100 with driver 580 and a torch for CUDA 13, until a test changes one of them."""
    driver = tmp_path / "version"
    driver.write_text(VERSION_FILE.format("580.65.06"))
    monkeypatch.setattr(node, "DRIVER", driver)
    monkeypatch.setattr(device, "DRIVER", driver)
    monkeypatch.setattr(node, "driver_cuda", lambda: "13.0")
    monkeypatch.setattr(node, "LIBRARY", str(tmp_path / "none.so"))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


@pytest.mark.usefixtures("machine")
def test_a_driver_that_knows_torchs_cuda(tmp_path: Path) -> None:
    found = node.driver(small_bench(tmp_path))
    assert found.verdict == "ok"
    assert (
        found.detail
        == "driver 580.65.06, which knows CUDA 13.0; torch wants 13.0; 1 × NVIDIA H100 80GB HBM3"
    )


def test_a_driver_that_is_too_old(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "version").write_text(VERSION_FILE.format("550.127.08"))
    machine.setattr(node, "driver_cuda", lambda: "12.4")
    machine.setattr(torch.cuda, "device_count", lambda: 0)
    found = node.driver(small_bench(tmp_path))
    assert (found.verdict, found.change) == ("fail", "NVIDIA driver 580 or newer on this machine")
    assert found.detail == "driver 550.127.08, which knows CUDA 12.4; torch wants 13.0"


def test_a_torch_without_cuda(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine.setattr(torch.version, "cuda", None)
    found = node.driver(small_bench(tmp_path))
    assert (found.verdict, found.change) == ("fail", "make setup TORCH=cuda")


def test_hidden_gpus(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine.setattr(torch.cuda, "device_count", lambda: 0)
    machine.setenv("CUDA_VISIBLE_DEVICES", "")
    found = node.driver(small_bench(tmp_path))
    assert found.verdict == "fail"
    assert found.detail.endswith("torch sees no GPU; CUDA_VISIBLE_DEVICES=''")
    assert found.change.startswith("CUDA_VISIBLE_DEVICES")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
@pytest.mark.parametrize(
    ("code", "meaning", "remedy"),
    [
        (802, "the GPUs' links are not set up", "nvidia-fabricmanager"),
        (803, "the driver's library and its kernel module are of different versions", "restart"),
        (999, "the driver does not say why", "nvidia-modprobe"),
        (100, "no GPU is there for this process", "--gpus of Slurm"),
        (555, "an error of its own", "NVIDIA driver 580 or newer"),
    ],
)
def test_the_drivers_own_answer_is_told_in_words(
    code: int, meaning: str, remedy: str, machine: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source, library = tmp_path / "cuda.c", tmp_path / "libcuda.so.1"
    source.write_text(f"int cuInit(unsigned flags) {{ return flags ? 1 : {code}; }}\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    machine.setattr(node, "LIBRARY", str(library))
    machine.setattr(torch.cuda, "device_count", lambda: 0)
    found = node.driver(small_bench(tmp_path))
    assert (found.verdict, found.detail) == (
        "fail",
        "driver 580.65.06, which knows CUDA 13.0; torch wants 13.0; torch sees no GPU; "
        f"cuInit answers {code}: {meaning}",
    )
    assert remedy in found.change
    machine.setenv("CUDA_VISIBLE_DEVICES", "7")
    found = node.driver(small_bench(tmp_path))
    hidden = found.change.startswith("CUDA_VISIBLE_DEVICES, which hides")
    assert hidden is (code == 100), "a list that names no GPU of this machine hides them all"


def test_a_machine_without_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "has_driver", lambda: False)
    assert node.driver(small_bench(tmp_path)).verdict == "skipped"


# --- compilers ---


@pytest.mark.usefixtures("machine")
def test_missing_compilers_fail_where_a_gpu_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "nvcc of CUDA 13 (/usr: no bin/nvcc): make setup-engines installs it",
        "a C++20 compiler (c++): get g++",
    ]
    monkeypatch.setattr(toolchain, "missing", lambda environ: lines)
    bench = small_bench(tmp_path, "engine.sampler=sglang")
    found = compilers.compilers(bench)
    assert found.verdict == "fail"
    assert found.detail == (
        "an engine on a GPU would lack nvcc of CUDA 13 (/usr: no bin/nvcc); a C++20 compiler (c++)"
    )
    assert found.change == "make setup-engines installs it; get g++"
    monkeypatch.setattr(compilers, "has_driver", lambda: False)
    assert compilers.compilers(bench).verdict == "skipped"
    monkeypatch.setattr(toolchain, "missing", lambda environ: [])
    assert compilers.compilers(bench).verdict == "ok"
    assert compilers.compilers(small_bench(tmp_path)).verdict == "skipped", "torch compiles nothing"


@pytest.mark.engines
def test_a_kernel_of_sglang_is_built(tmp_path: Path) -> None:
    skip_without("sglang")
    if toolchain.missing(os.environ):
        pytest.skip(f"no compilers here: {toolchain.missing(os.environ)}")
    checks = [check for check in CHECKS if check.name in ("compilers", "kernel")]
    outcomes = list(run_checks(checks, small_bench(tmp_path, "engine.sampler=sglang"), tmp_path))
    assert [outcome.verdict for outcome in outcomes] == ["ok", "ok"], outcomes
    assert list((tmp_path / "kernels").rglob("*.so"))


# --- the card ---


def test_a_card_is_free_or_its_holders_are_named() -> None:
    free = held_by_others(79.1, 78.5, [])
    assert (free.verdict, free.detail) == ("ok", "79.1 GiB, 78.5 of it free")
    assert free.numbers == {"total_gib": 79.1, "free_gib": 78.5}
    desktop = held_by_others(79.1, 78.3, [MemoryHolder(1, "Xorg", 0.1)])
    assert desktop.verdict == "ok"
    assert desktop.detail == "79.1 GiB, 78.3 of it free; others there: Xorg (process 1, 0.1 GiB)"
    held = held_by_others(
        79.1, 66.0, [MemoryHolder(4711, "python", 12.0), MemoryHolder(4714, "[Not Found]", None)]
    )
    assert held.verdict == "fail"
    assert (
        "python (process 4711, 12.0 GiB), [Not Found] (process 4714, an unknown part)"
        in held.detail
    )
    assert held.change == "end them (kill 4711 4714), or take another GPU"
    hidden = held_by_others(79.1, 66.0, [])
    assert (hidden.verdict, hidden.detail) == (
        "fail",
        "79.1 GiB, 66.0 of it free; nvidia-smi names no process",
    )


def test_memory_is_that_of_the_card_without_this_process(
    machine: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine.setattr(node, "card_gib", lambda: 79.1)
    machine.setattr(node, "free_gib", lambda: 60.0)
    machine.setattr(
        node,
        "holders",
        lambda: [MemoryHolder(os.getpid(), "python", 0.5), MemoryHolder(4711, "trial", 18.5)],
    )
    found = node.memory(small_bench(tmp_path))
    assert found.change == "end them (kill 4711), or take another GPU"
    machine.setattr(node, "card_gib", lambda: None)
    assert node.memory(small_bench(tmp_path)).verdict == "skipped"
