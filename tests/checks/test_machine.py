"""What is told of driver, compilers and card, from what the system would say on a machine with a
GPU, and what the checks of a device compute, on CPUs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softmax

from orchestrator.checks import machine as checks
from orchestrator.checks.catalog import gpu_checks
from orchestrator.checks.check import run_checks
from orchestrator.checks.machine import (
    ALLOWED,
    MEASURED,
    PACKED,
    SUMMED,
    held_by_others,
    largest_difference,
    masked_attention,
)
from orchestrator.engines import device
from orchestrator.engines.common import passes as packed
from orchestrator.engines.device import MemoryHolder
from orchestrator.engines.sglang import toolchain
from orchestrator.engines.torch import trainer
from tests.checks.benches import small_bench
from tests.checks.fakes import never
from tests.engines.installed import skip_without

VERSION_FILE = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder@U16)  Sun Jul 20 UTC 2025
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An H100 with driver 580 and a torch for CUDA 13, until a test changes one of them."""
    driver = tmp_path / "version"
    driver.write_text(VERSION_FILE.format("580.65.06"))
    monkeypatch.setattr(checks, "DRIVER", driver)
    monkeypatch.setattr(device, "DRIVER", driver)
    monkeypatch.setattr(checks, "driver_cuda", lambda: "13.0")
    monkeypatch.setattr(checks, "LIBRARY", str(tmp_path / "none.so"))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


@pytest.mark.usefixtures("machine")
def test_a_driver_that_knows_torchs_cuda(tmp_path: Path) -> None:
    found = checks.driver(small_bench(tmp_path))
    assert found.verdict == "ok"
    assert (
        found.detail
        == "driver 580.65.06, which knows CUDA 13.0; torch wants 13.0; 1 × NVIDIA H100 80GB HBM3"
    )


def test_a_driver_that_is_too_old(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "version").write_text(VERSION_FILE.format("550.127.08"))
    machine.setattr(checks, "driver_cuda", lambda: "12.4")
    machine.setattr(torch.cuda, "device_count", lambda: 0)
    found = checks.driver(small_bench(tmp_path))
    assert (found.verdict, found.change) == ("fail", "NVIDIA driver 580 or newer on this machine")
    assert found.detail == "driver 550.127.08, which knows CUDA 12.4; torch wants 13.0"


def test_a_torch_without_cuda(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine.setattr(torch.version, "cuda", None)
    found = checks.driver(small_bench(tmp_path))
    assert (found.verdict, found.change) == ("fail", "make setup TORCH=cuda")


def test_hidden_gpus(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine.setattr(torch.cuda, "device_count", lambda: 0)
    machine.setenv("CUDA_VISIBLE_DEVICES", "")
    found = checks.driver(small_bench(tmp_path))
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
    machine.setattr(checks, "LIBRARY", str(library))
    machine.setattr(torch.cuda, "device_count", lambda: 0)
    found = checks.driver(small_bench(tmp_path))
    assert (found.verdict, found.detail) == (
        "fail",
        "driver 580.65.06, which knows CUDA 13.0; torch wants 13.0; torch sees no GPU; "
        f"cuInit answers {code}: {meaning}",
    )
    assert remedy in found.change
    machine.setenv("CUDA_VISIBLE_DEVICES", "7")
    found = checks.driver(small_bench(tmp_path))
    hidden = found.change.startswith("CUDA_VISIBLE_DEVICES, which hides")
    assert hidden is (code == 100), "a list that names no GPU of this machine hides them all"


def test_a_machine_without_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "has_driver", lambda: False)
    assert checks.driver(small_bench(tmp_path)).verdict == "skipped"


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
    found = checks.compilers(bench)
    assert found.verdict == "fail"
    assert found.detail == (
        "an engine on a GPU would lack nvcc of CUDA 13 (/usr: no bin/nvcc); a C++20 compiler (c++)"
    )
    assert found.change == "make setup-engines installs it; get g++"
    monkeypatch.setattr(checks, "has_driver", lambda: False)
    assert checks.compilers(bench).verdict == "skipped"
    monkeypatch.setattr(toolchain, "missing", lambda environ: [])
    assert checks.compilers(bench).verdict == "ok"
    assert checks.compilers(small_bench(tmp_path)).verdict == "skipped", "torch compiles nothing"


@pytest.mark.engines
def test_a_kernel_of_sglang_is_built(tmp_path: Path) -> None:
    skip_without("sglang")
    if toolchain.missing(os.environ):
        pytest.skip(f"no compilers here: {toolchain.missing(os.environ)}")
    chosen = [check for check in gpu_checks() if check.name in ("compilers", "kernel")]
    outcomes = list(run_checks(chosen, small_bench(tmp_path, "engine.sampler=sglang"), tmp_path))
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
    machine.setattr(checks, "card_gib", lambda: 79.1)
    machine.setattr(checks, "free_gib", lambda: 60.0)
    machine.setattr(
        checks,
        "holders",
        lambda: [MemoryHolder(os.getpid(), "python", 0.5), MemoryHolder(4711, "trial", 18.5)],
    )
    found = checks.card(small_bench(tmp_path))
    assert found.change == "end them (kill 4711), or take another GPU"
    machine.setattr(checks, "card_gib", lambda: None)
    assert checks.card(small_bench(tmp_path)).verdict == "skipped"


# --- what a device computes, on CPUs ---


CPU = torch.device("cpu")


def by_hand(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention (N, heads, D), one position of one sequence after the other."""
    heads, groups = query.shape[1], key.shape[1]
    rows, start = [], 0
    for length in PACKED:
        for last in range(start, start + length):
            keys = key[start : last + 1].repeat_interleave(heads // groups, 1)
            values = value[start : last + 1].repeat_interleave(heads // groups, 1)
            weights = softmax(
                torch.einsum("hd,nhd->hn", query[last], keys) / query.shape[2] ** 0.5, -1
            )
            rows.append(torch.einsum("hn,nhd->hd", weights, values))
        start += length
    return torch.stack(rows)


def across(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention that does not see where a sequence ends."""
    start = sum(PACKED) - PACKED[-1]
    output = masked_attention(query, key, value)
    return torch.cat([output[:start], masked_attention(query.roll(1, 0), key, value)[start:]])


def test_the_masked_reference_is_attention_within_each_sequence() -> None:
    assert largest_difference(by_hand, masked_attention, CPU, torch.float32) < 1e-4


def test_rounding_is_allowed_and_a_wrong_mask_is_not() -> None:
    rounded = largest_difference(masked_attention, masked_attention, CPU, torch.bfloat16)
    assert 1e-4 < rounded < ALLOWED[torch.bfloat16]
    assert (
        largest_difference(across, masked_attention, CPU, torch.float32)
        > 10 * ALLOWED[torch.bfloat16]
    )


def test_a_learners_state_comes_back_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "PIECE", 10_000)  # several pieces
    assert checks.offload(small_bench(tmp_path)).verdict == "ok"

    class Forgetful(trainer.Offload):
        def to_device(self) -> None:
            super().to_device()
            next(iter(self._parameters.values())).data[7] += 1

    monkeypatch.setattr(trainer, "Offload", Forgetful)
    found = checks.offload(small_bench(tmp_path))
    assert (found.verdict, found.detail) == ("fail", "the learner's state came back changed")


def test_a_host_without_room_is_told_before_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = small_bench(tmp_path)
    shape = replace(bench.declared.student.shape, layers=28, hidden=2048, ffn=6144)
    student = replace(bench.declared.student, shape=shape)
    large = replace(bench, of=replace(bench.of, setup=replace(bench.declared, student=student)))
    monkeypatch.setattr(checks, "available_gib", lambda: 2.0)
    found = checks.offload(large)
    assert found.verdict == "fail"
    assert found.detail.startswith(
        "2.0 GiB of the host's memory are available, a learner's state takes "
    )


def test_two_processes_add_up_over_loopback(tmp_path: Path) -> None:
    found = checks.collective(small_bench(tmp_path))
    assert found.verdict == "ok", found
    measured = json.loads((tmp_path / MEASURED).read_text())
    assert measured["bytes"] == 4 * SUMMED["cpu"]
    assert found.numbers["gb_s"] == pytest.approx(measured["bytes"] / measured["seconds"] / 1e9)


def test_a_process_that_does_not_come_fails_the_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "add_up", never)
    found = checks.collective(small_bench(tmp_path))
    assert (found.verdict, found.detail) == ("fail", "gloo: its processes ended with 1 and 1")


def test_packed_sequences_are_compared_with_masked_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code that trains and scores; on GPUs the same check calls their kernel."""
    assert checks.attention(small_bench(tmp_path)).verdict == "ok"
    real = packed.packed_attention

    def one_sequence(
        query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, *rest: object
    ) -> Tensor:
        return real(query, key, value, bounds[[0, -1]], *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(packed, "packed_attention", one_sequence)
    assert checks.attention(small_bench(tmp_path)).verdict == "fail"
