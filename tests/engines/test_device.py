"""The GPU of a process, on fakes of what the driver says: waiting for memory, who holds it, and its
peak.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.engines import catalog, device
from orchestrator.engines.device import MemoryHolder, PeakWatch, holders_in, wait_for_memory
from orchestrator.engines.sglang import engine as sglang
from orchestrator.errors import EngineLost, GpuFull
from orchestrator.liveness.processes import group_members
from orchestrator.workers.members import job_of
from tests import tiny

LISTED = """\
GPU-aaaa, 4711, /usr/bin/python3, 12544
GPU-bbbb, 4712, /usr/bin/other, 100
GPU-aaaa, 4713, [Not Found], [N/A]
"""


def test_an_engine_waits_until_the_one_before_has_given_its_memory_back() -> None:
    readings: Iterator[float] = iter([4.0, 20.0, 61.0])
    wait_for_memory(60.0, "an engine", limit_s=60, free=lambda: next(readings), held_by=list)
    assert next(readings, None) is None, "it looked until there was enough, and no longer"


def test_a_model_in_a_circle_of_references_is_dropped_before_an_engine_waits() -> None:
    class Model:
        """Holds itself, as a module does whose forward pass is bound to it."""

    model = Model()
    model.itself = model  # pyright: ignore[reportAttributeAccessIssue]
    alive = weakref.ref(model)
    del model
    gc.disable()
    try:
        wait_for_memory(
            60.0,
            "an engine",
            limit_s=0,
            free=lambda: 61.0 if alive() is None else 53.5,
            held_by=list,
        )
    finally:
        gc.enable()


def test_memory_that_never_comes_back_is_an_error_that_names_its_holders() -> None:
    def held_by() -> list[MemoryHolder]:
        return [MemoryHolder(4711, "python3", 12.25)]

    with pytest.raises(GpuFull) as refused:
        wait_for_memory(60.0, "an SGLang engine", limit_s=0, free=lambda: 30.5, held_by=held_by)
    assert str(refused.value) == (
        "GPU memory: 30.5 GiB are free after 0 s; an SGLang engine takes 60.0 GiB; "
        "the rest is held by python3 (process 4711, 12.2 GiB)"
    )
    assert isinstance(refused.value, EngineLost), "another attempt may find it free"
    with pytest.raises(GpuFull, match="no process that can be seen from here"):
        wait_for_memory(60.0, "an engine", limit_s=0, free=lambda: 0.0, held_by=list)


def test_holders_are_those_of_the_processs_own_gpu() -> None:
    assert holders_in(LISTED, "aaaa") == [
        MemoryHolder(4711, "python3", 12.25),
        MemoryHolder(4713, "[Not Found]", None),
    ]
    assert holders_in("", "aaaa") == []


def test_the_peak_is_of_the_time_since_it_was_asked_last() -> None:
    used = 3.0
    watch = PeakWatch(lambda: used, every_s=1e-3)
    try:
        assert watch.take() == 3.0
        used = 50.0
        while watch._peak < 50.0:  # the thread has seen it
            pass
        used = 4.0
        assert watch.take() == 50.0
        assert watch.take() == 4.0
    finally:
        watch.close()


def test_without_a_gpu_nothing_is_granted_or_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    device.hide_gpus()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert device.card_gib() is None
    assert device.watch_gpu() is None


def test_a_group_is_gone_when_its_last_process_is() -> None:
    """The leader dies first, and its child goes on for a while, as SGLang's scheduler does."""
    leader = "import subprocess, sys; c = subprocess.Popen(['sleep', '60']); print(c.pid, flush=True); c.wait()"
    process = subprocess.Popen(
        [sys.executable, "-c", leader], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert set(group_members(process.pid)) == {process.pid, child}
    process.kill()
    process.wait()
    assert group_members(process.pid) == [child]
    os.kill(child, signal.SIGKILL)
    while group_members(process.pid):
        pass
    process.stdout.close()


@pytest.mark.parametrize(
    ("gib", "changed", "stays", "again"),
    [
        (79.1, {}, True, False),
        (79.1, {"resident": False}, False, False),
        (79.1, {"checkpointing": True}, True, True),
        (None, {}, False, False),  # CPUs keep all, and their roles take turns as before
        (None, {"checkpointing": True}, False, True),
    ],
)
def test_sampler_and_learner_of_a_trial_agree_whether_both_stay_on_the_gpu(
    gib: float | None,
    changed: dict[str, bool],
    stays: bool,
    again: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The card is pretended; the models are where torch finds room."""
    monkeypatch.setattr(device, "card_gib", lambda: gib)
    job = replace(job_of(tiny.worker_spec(tmp_path)), takes_turns=True)
    engine = replace(job.setup.engine, sampler="sglang", dtype="bfloat16")
    job = replace(
        job, setup=replace(job.setup, engine=engine), runtime=replace(job.runtime, **changed)
    )
    asked = sglang.settings(job, "student")
    assert asked.takes_turns != stays
    trainer = catalog.open_engine("torch", job).trainer()
    assert (trainer._offload is None) == stays  # pyright: ignore[reportAttributeAccessIssue]
    assert trainer._passes.checkpointing == again  # pyright: ignore[reportAttributeAccessIssue]
    evaluator = replace(job, trains=False, takes_turns=False, sampling=())
    alone = sglang.settings(evaluator, "student")
    assert not alone.takes_turns
