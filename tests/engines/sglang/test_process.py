"""The process of an engine and what is left of it: a fake takes the place of SGLang."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Never

import pytest
import torch

from orchestrator.engines.budget import Budget
from orchestrator.engines.interface import Job, WeightsRef
from orchestrator.engines.memory import Gpus
from orchestrator.engines.sglang import engine as engine_module
from orchestrator.engines.sglang import process
from orchestrator.engines.sglang.engine import SglangSampler
from orchestrator.engines.sglang.process import EngineProcess, LoadTensors, Settings, leaner
from orchestrator.errors import EngineLost, EngineOutOfMemory
from orchestrator.policy.spec import Student, TrustRegion
from orchestrator.sweep.failures import failure_of
from orchestrator.sweep.processes import leaner as leaner_spec
from orchestrator.workers.members import RolloutWorker, job_of
from tests import tiny
from tests.engines.sglang.fake_engine import CARD_HOLDS, HANGS
from tests.sweeps import ROOT


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MODULE", "tests.engines.sglang.fake_engine")


def settings(cache_tokens: int = 10_000, requests: int = 64) -> Settings:
    return Settings(
        "/model", "float32", "student", 16, 0, 15, 8, False, None, cache_tokens, requests, False
    )


def test_an_engine_that_runs_out_of_memory_is_started_again_with_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CARD_HOLDS, "8500")
    engine = EngineProcess(settings())
    for _ in range(2):
        with pytest.raises(EngineOutOfMemory) as raised:
            engine.start()
        failure = failure_of(raised.value)
        assert failure.kind == "out of memory"
        assert failure.passes
        assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate" in failure.reason
    assert engine.digests() == {"cache": "8100", "requests": "32", "loaded": ""}
    engine.end()


def test_a_sampler_comes_up_where_a_tenth_less_is_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = job_of(tiny.worker_spec(tmp_path))
    sampler = SglangSampler(job, "student")
    whole = sampler._opened()._settings
    monkeypatch.setenv(CARD_HOLDS, str(whole.cache_tokens - 1))
    sampler.start(teacher=False)
    tokens, requests = whole.cache_tokens * 9 // 10, whole.requests
    assert sampler.digests() == {"cache": str(tokens), "requests": str(requests), "loaded": ""}
    sampler.release()


def test_the_next_attempt_at_a_unit_begins_with_a_smaller_engine(tmp_path: Path) -> None:
    spec = tiny.worker_spec(tmp_path)

    def at(attempt: int) -> tuple[int, int]:
        job: Job = job_of(leaner_spec(spec, attempt - 1))
        chosen = SglangSampler(job, "student")._opened()._settings
        return chosen.cache_tokens, chosen.requests

    tokens, requests = at(1)
    assert at(2) == (tokens * 9 // 10, requests)
    assert at(3) == (tokens * 9 // 10 * 9 // 10, requests // 2)


def test_the_smallest_cache_holds_one_sequence() -> None:
    small = replace(settings(cache_tokens=100, requests=1), context=60)
    for _ in range(3):
        small = leaner(small)
    assert small.cache_tokens == 60 + 2 * 16
    assert small.requests == 1
    assert leaner(settings(cache_tokens=30)).cache_tokens == 30


@pytest.mark.parametrize(
    ("printed", "ran_out"),
    [
        ("torch.AcceleratorError: CUDA error: out of memory", True),
        ("RuntimeError: CUDA driver error: out of memory", True),
        ("RuntimeError: Triton Error [CUDA]: out of memory", True),
        ("ncclUnhandledCudaError: Cuda failure 2 'out of memory'", True),
        ("[torch_memory_saver.cpp] CUresult error: 2 out of memory file=core.cpp", True),
        ("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate", True),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", True),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", True),
        ("Decode out of memory. Try to lower your batch size.", False),
        ("alloc_req_slots runs out of memory. Please set a smaller number", False),
        ("[torch_memory_saver.cpp] CUresult error: 201 invalid device context", False),
        (
            "[torch_memory_saver.cpp] cuMemCreate CUDA_ERROR_OUT_OF_MEMORY (may not be an issue "
            "e.g. torch allocator will free cache and retry)",
            False,
        ),
    ],
)
def test_words_of_a_shortage_are_told_from_others(printed: str, ran_out: bool) -> None:
    assert bool(process.SHORTAGE.search(f"before\n{printed}\nafter")) == ran_out


def test_a_smaller_cache_than_granted_is_a_passing_shortage() -> None:
    failure = failure_of(EngineOutOfMemory("SGLang made a KV cache of 9 tokens where 10 were"))
    assert (failure.kind, failure.passes) == ("out of memory", True)
    assert failure_of(EngineLost("the SGLang engine died")).kind == "lost"


TENSORS = {
    "embed": torch.arange(24, dtype=torch.bfloat16).reshape(4, 6),
    "norm": torch.rand(7),
    "head": torch.rand(3, 5).to(torch.float16).T,
}
HOLDER = """
import sys, tempfile, torch
from pathlib import Path
from orchestrator.engines.interface import WeightsRef
from orchestrator.engines.sglang import process
settings = process.Settings("", "", "student", 9, 0, 1, 8, False, None, 64, 4, False)
process.MODULE = "tests.engines.sglang.fake_engine"
process.SHARED_MEMORY = Path(sys.argv[1])
process.EngineProcess(settings).load(WeightsRef(1, {"w": torch.zeros(2**24)}))
"""


def test_a_killed_process_leaves_no_weights(tmp_path: Path) -> None:
    there, marker = tmp_path / "temporary", tmp_path / "loading"
    there.mkdir()
    environment = os.environ | {"TMPDIR": str(there), HANGS: str(marker), "OMP_NUM_THREADS": "1"}
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(there)], cwd=ROOT, env=environment)
    while not marker.exists() or not marker.read_text().endswith("\n"):
        assert holder.poll() is None, "it waits for the engine"
        time.sleep(0.02)
    held = Path(marker.read_text().strip())
    assert held.exists()
    holder.kill()
    holder.wait()
    assert not held.exists()
    assert [path for path in there.rglob("*") if path.is_file()] == []


def test_another_process_opens_the_very_tensors() -> None:
    slots = process.layout(TENSORS)
    assert [slot.start % 256 for slot in slots] == [0, 0, 0]
    with process.host_memory(slots, TENSORS) as opener:
        code = "import pickle, sys; f, given = pickle.load(sys.stdin.buffer); t = f(*given)"
        done = subprocess.run(
            [sys.executable, "-c", f"{code}; sys.stdout.buffer.write(t.numpy().tobytes())"],
            input=pickle.dumps(opener),
            capture_output=True,
            check=True,
        )
    flat = torch.frombuffer(bytearray(done.stdout), dtype=torch.uint8)
    for slot in slots:
        tensor = flat[slot.start : slot.end].view(getattr(torch, slot.dtype)).reshape(slot.shape)
        assert torch.equal(tensor, TENSORS[slot.name])


def test_weights_go_through_the_host_where_a_handle_does_not_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "free_gib", lambda: 1.0)
    monkeypatch.setattr(process, "device_memory", process.host_memory)
    engine = EngineProcess(replace(settings(), by_handle=True))
    engine.load(WeightsRef(3, TENSORS))
    assert "invalid resource handle; from now on weights go through" in caplog.text
    assert engine.digests()["loaded"] == engine.version == "1-step3"
    pid = engine.pid
    engine.load(WeightsRef(4, TENSORS))
    assert engine.digests()["loaded"] == "2-step4"
    assert engine.pid == pid, "it was refused once"
    engine.end()


def test_a_gpu_without_room_takes_no_second_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "free_gib", lambda: 0.0)
    engine = EngineProcess(replace(settings(), by_handle=True))
    asked: list[LoadTensors] = []
    monkeypatch.setattr(engine, "_ask", asked.append)
    engine._put(WeightsRef(0, TENSORS))
    assert asked[0].opener[1][0].startswith("/proc/")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"weights": "host"}, False),
        ({"takes_turns": False}, False),
        ({"on": Gpus(2)}, False),
    ],
)
def test_handles_are_for_one_gpu_that_is_shared_in_turns(
    changes: dict[str, Any], expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(job_of(tiny.worker_spec(tmp_path)), takes_turns=True)
    if "weights" in changes:
        job = replace(job, runtime=replace(job.runtime, weights=changes.pop("weights")))
    job = replace(job, **changes)
    monkeypatch.setattr(engine_module, "granted", lambda *_: None)
    assert not engine_module.settings(job, "student").by_handle, "as where no GPU is"
    budget = Budget("decoding", 79.0, kv_tokens=1000, requests=4)
    monkeypatch.setattr(engine_module, "granted", lambda *_: budget)
    assert engine_module.settings(job, "student").by_handle == expected


class Noted:
    """An engine's process that notes what it loads."""

    all: ClassVar[list[Noted]] = []

    def __init__(self, _: Settings):
        self.loaded: list[int] = []
        self._next: WeightsRef | None = None
        self.all.append(self)

    def start(self) -> None:
        if self._next is not None:
            self.loaded.append(self._next.step)
        self._next = None

    def start_in(self, weights: WeightsRef) -> None:
        self._next = weights

    def load(self, weights: WeightsRef) -> None:
        self._next = weights
        self.start()

    def end(self) -> None: ...


def test_no_weights_go_into_an_engine_that_is_ended_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two steps beside the teacher are followed by two without."""
    monkeypatch.setattr(engine_module, "EngineProcess", Noted)
    monkeypatch.setattr(Noted, "all", [])
    spec = tiny.worker_spec(tmp_path)
    student = SglangSampler(job_of(spec), "student")

    def sample(*_: object) -> Never:
        raise EngineLost("it would sample now")

    monkeypatch.setattr(student, "sample", sample)
    engines = types.SimpleNamespace(sampler_name=lambda _: "sglang", sampler=lambda _: student)
    rollout = RolloutWorker(spec, engines)  # pyright: ignore[reportArgumentType]
    student.start(teacher=True)
    for step, behavior in enumerate((TrustRegion(0.1), TrustRegion(0.1), Student(), Student())):
        rollout.load(WeightsRef(step, {}))
        with pytest.raises(EngineLost, match="would sample"):
            rollout.sample([], behavior)
    assert [process.loaded for process in Noted.all] == [[0, 1], [2, 3]]
