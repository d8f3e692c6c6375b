"""Which failures are final at once, and which are tried again."""

from __future__ import annotations

import errno

import pytest
import torch
from ray import exceptions

from orchestrator.errors import NotFinite, UserError
from orchestrator.records.lease import LeaseHeld
from orchestrator.sweep.failures import failure_of


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UserError("setups: 'x' — one of y"), "mistake: setups: 'x' — one of y"),
        (NotFinite("step 1: loss is not finite"), "not finite: step 1: loss is not finite"),
        (LeaseHeld("unit is being run by process 7 on h"), "taken: unit is being run by process 7 on h"),
        (RuntimeError("shapes\ndo not match"), "error: RuntimeError: do not match"),
        (KeyError("exp_avg"), "error: KeyError: 'exp_avg'"),
        (OSError(errno.ENOSPC, "No space left on device"), "file system: OSError: [Errno 28] No space left on device"),
        (FileNotFoundError(errno.ENOENT, "No such file"), "file system: FileNotFoundError: [Errno 2] No such file"),
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
        (MemoryError(), "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
        (exceptions.OutOfMemoryError("killed"), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"), "out of memory"),
        (OSError(errno.ESTALE, "Stale file handle"), "file system"),
    ],
)
def test_what_was_lost_is_tried_again(error: Exception, kind: str) -> None:
    failure = failure_of(error)
    assert failure.kind == kind
    assert failure.passes
