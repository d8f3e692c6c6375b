"""Why an attempt at a unit ended, and whether another one may fare better.

A mistake, a diverged run or a programming error would be the same again; a process, a node or a device that was lost
would not. A process that is killed comes to no such answer: Tune sees that it is gone and makes another attempt, up
to `tuner.ATTEMPTS`, that goes on from the unit's last commit (more of what happens after a kill stands in
`sweep/__init__.py`). Called where the attempt ran, so that torch and Ray are imported already.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from orchestrator.errors import NotFinite, UserError, WrongWeights
from orchestrator.records.lease import LeaseHeld

# Of a network or a file system that may be back in a moment; a full disk or a missing file is not.
PASSING_ERRORS = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET, errno.EAGAIN, errno.ENETUNREACH}


OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class Failure:
    """`kind` is a word or two for people; where `passes`, the unit is tried again in a new process."""

    kind: str
    reason: str
    passes: bool

    @property
    def text(self) -> str:
        """`not finite: step 1: loss is not finite (training.optimizer.lr=1e+30?)`."""
        return f"{self.kind}: {self.reason}"


def failure_of(error: Exception) -> Failure:
    """What became of an attempt that ended with `error`."""
    lines = str(error).strip().splitlines()
    last = lines[-1] if lines else type(error).__name__
    match error:
        case LeaseHeld():
            return Failure("taken", last, passes=False)
        case UserError():
            return Failure("mistake", " ".join(lines), passes=False)
        case NotFinite():
            return Failure("not finite", last, passes=False)
        case WrongWeights():
            return Failure("wrong weights", last, passes=True)
    named = f"{type(error).__name__}: {last}"
    if _is_out_of_memory(error):
        return Failure(OUT_OF_MEMORY, named, passes=True)
    if _is_lost(error):
        return Failure("lost", named, passes=True)
    if isinstance(error, OSError):
        return Failure("file system", named, passes=error.errno in PASSING_ERRORS)
    return Failure("error", named, passes=False)


def _is_out_of_memory(error: Exception) -> bool:
    import torch
    from ray import exceptions

    if isinstance(error, MemoryError | torch.OutOfMemoryError | exceptions.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # torch on CPUs


def _is_lost(error: Exception) -> bool:
    """Whether a process, a node, an object of theirs or a device is gone."""
    import torch
    from ray import exceptions

    lost = (exceptions.RayActorError, exceptions.WorkerCrashedError, exceptions.ObjectLostError,
            exceptions.GetTimeoutError, exceptions.NodeDiedError, exceptions.LocalRayletDiedError,
            torch.AcceleratorError)  # fmt: skip
    return isinstance(error, lost)
