"""Which failures are final at once, and which are tried again."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ray import exceptions

from orchestrator.errors import EngineLost, LeaseHeld, NotFinite, UserError, WrongWeights
from orchestrator.records.log import RunLog, read_log
from orchestrator.records.rundir import RunReader
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from orchestrator.sweep import processes
from orchestrator.sweep.failures import failure_of
from orchestrator.sweep.processes import Sweep, TrainingProcess, leaner
from orchestrator.sweep.schedule import TrainUnit
from tests import tiny
from tests.fake_runs import quickstart, units_of, write_run


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UserError("setups: 'x': expected one of y"), "mistake: setups: 'x': expected one of y"),
        (NotFinite("step 1: loss is not finite"), "not finite: step 1: loss is not finite"),
        (
            LeaseHeld("unit is being run by process 7 on h"),
            "taken: unit is being run by process 7 on h",
        ),
        (RuntimeError("shapes\ndo not match"), "error: RuntimeError: do not match"),
        (KeyError("exp_avg"), "error: KeyError: 'exp_avg'"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "disk full: file system: No space left on device",
        ),
        (
            RuntimeError("cannot serialize: No space left on device (os error 28)"),
            "disk full: file system: cannot serialize: No space left on device (os error 28)",
        ),
        (
            OSError(errno.EDQUOT, "Disk quota exceeded", "/runs/a/metrics.jsonl"),
            "disk full: /runs/a/metrics.jsonl: Disk quota exceeded",
        ),
        (WrongWeights("0.3 nats apart"), "wrong weights: 0.3 nats apart"),
        (
            FileNotFoundError(errno.ENOENT, "No such file"),
            "file system: FileNotFoundError: [Errno 2] No such file",
        ),
        (ValueError(), "error: ValueError: ValueError"),
    ],
)
def test_what_would_be_the_same_again_is_final(error: Exception, text: str) -> None:
    failure = failure_of(error)
    assert failure.text == text
    assert not failure.passes


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.ActorDiedError(), "lost"),
        (exceptions.WorkerCrashedError(), "lost"),
        (exceptions.GetTimeoutError("no answer"), "lost"),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), "lost"),
        (EngineLost("the SGLang engine died"), "lost"),
        (MemoryError(), "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
        (exceptions.OutOfMemoryError("killed"), "out of memory"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
            "out of memory",
        ),
        (OSError(errno.ESTALE, "Stale file handle"), "file system"),
    ],
)
def test_what_was_lost_is_tried_again(error: Exception, kind: str) -> None:
    failure = failure_of(error)
    assert failure.kind == kind
    assert failure.passes


def test_an_attempt_after_one_without_enough_memory_takes_half_the_micro_batch(
    tmp_path: Path,
) -> None:
    spec = tiny.worker_spec(tmp_path)
    tokens = [leaner(spec, times).runtime.micro_batch_tokens for times in range(3)]
    assert tokens == [64, 32, 16]
    assert leaner(spec, 60).runtime.micro_batch_tokens == 1
    derived = replace(spec, runtime=replace(spec.runtime, micro_batch_tokens=None))
    assert [leaner(derived, times).runtime.micro_batch_tokens for times in range(3)] == [
        None,
        8192,
        4096,
    ]
    # What is kept beside the micro-batch where memory is plenty goes first.
    assert leaner(derived, 0).runtime == derived.runtime
    keeping = replace(derived, runtime=replace(derived.runtime, checkpointing=False, resident=True))
    lean = leaner(keeping, 1).runtime
    assert lean.checkpointing
    assert lean.resident is False


def test_attempts_without_enough_memory_are_counted_within_one_sweep(tmp_path: Path) -> None:
    first, second, other = (RunLog(tmp_path) for _ in range(3))
    assert (first.begin("sweep", 3), first.out_of_memory) == (1, 0)
    first.note_out_of_memory()
    assert (second.begin("sweep", 3), second.out_of_memory) == (2, 1)
    assert (other.begin("another sweep", 3), other.out_of_memory) == (1, 0)


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingProcess:
    """An attempt at a unit that is trained already."""
    experiment, units = quickstart()
    (unit,) = units_of(units, "vanilla")
    write_run(tmp_path, experiment, unit, {}, unit.steps, done=True)
    monkeypatch.setattr(processes, "worker_spec", lambda *_: None)
    sweep = Sweep(Study(experiment, units, tmp_path), {unit.setup: ()}, "sweep", 3)  # pyright: ignore[reportArgumentType]
    return TrainingProcess(sweep, TrainUnit(unit))


def test_an_attempt_at_a_unit_that_another_sweep_has_trained_ends_at_once(
    attempt: TrainingProcess, tmp_path: Path
) -> None:
    before = read_log(tmp_path / attempt._unit.id)
    assert attempt.step() == {"done": True}
    assert not RunReader(tmp_path, attempt._unit.id).running
    assert "attempt" not in (read_log(tmp_path / attempt._unit.id) or "").removeprefix(before or "")


def test_a_failure_that_a_full_disk_does_not_take_is_the_failure_all_the_same(
    attempt: TrainingProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl")

    def refuse(*_: object) -> None:
        raise full

    def begin(self: TrainingProcess) -> None:
        self._run = RunWriter(tmp_path, self._unit.id)
        raise full

    monkeypatch.setattr(RunWriter, "fail", refuse)
    monkeypatch.setattr(TrainingProcess, "_begin", begin)
    with pytest.raises(OSError, match="No space left on device"):
        attempt.step()
    assert not RunReader(tmp_path, attempt._unit.id).running, "the lease is free"
