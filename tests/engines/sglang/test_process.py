"""The process of an engine and what is left of it: a fake takes the place of SGLang."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.engines.interface import Job
from orchestrator.engines.sglang import process
from orchestrator.engines.sglang.calls import Settings, leaner
from orchestrator.engines.sglang.engine import SglangSampler
from orchestrator.engines.sglang.process import EngineProcess
from orchestrator.errors import EngineLost, EngineOutOfMemory
from orchestrator.sweep.failures import failure_of
from orchestrator.sweep.training_process import leaner as leaner_spec
from orchestrator.workers.engines import job_of
from tests import tiny
from tests.engines.sglang.fake_engine import CARD_HOLDS


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
    assert engine.digests() == {"cache": "8100", "requests": "32"}
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
    assert sampler.digests() == {"cache": str(tokens), "requests": str(requests)}
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
