"""Decides the response to a failure: a killed or frozen process, a dead cluster, an error.

Recovery needs nothing from a process that died: the commits in the run directory say where to go
on.

- The process of a unit: Tune sees that it is gone and makes another attempt (`tuner.ATTEMPTS` in
  all) in a new process. The new process opens the run directory, cuts its logs back to the last
  commit (`records.writer`) and trains on from there, to the same bytes.
- An evaluator: its claim lapses with its lock, and the next evaluator samples the slice from its
  start (`liveness.leases`). Slices are written whole or not at all.
- A frozen process: the watchdog (`liveness.heartbeat`) kills it, and one of the two cases above
  follows.
- The driver, `trb submit`: `liveness.deaths` kills the rest of its private cluster within
  seconds. The same command resumes the sweep.
- A server of Ray: `liveness.deaths` ends the driver, with one line, and the processes on all
  nodes. The same command resumes the sweep.
- A node: its processes are lost processes, and other nodes get their work.

- A full disk: the work that met it ends without another attempt, and with it the sweep
  (`tuner.SweepSearcher`): all other work writes to the same disk. The driver names the folder.

`failure_of` classifies an attempt that ends with an error. A user's mistake, wrong weights, a
diverged run or a programming error would recur; a lost process, node or device would not, nor a
lack of memory with smaller batches and caches (`sweep.processes`). The process of the
attempt calls it, so torch and Ray are imported already.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from orchestrator.errors import (
    FULL,
    EngineLost,
    EngineOutOfMemory,
    LeaseHeld,
    NotFinite,
    RankLost,
    UserError,
    WrongWeights,
)

# Errors of a network or a file system that may recover soon, unlike a full disk.
PASSING_ERRORS = {
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.EAGAIN,
    errno.ENETUNREACH,
}
OUT_OF_MEMORY = "out of memory"
DISK_FULL = "disk full"
MISTAKE, NOT_FINITE, WRONG_WEIGHTS, ERROR = "mistake", "not finite", "wrong weights", "error"
# Kinds of failure that come again with the same inputs, and the inputs to change.
REMEDIES = {
    MISTAKE: "the key or file that it names",
    NOT_FINITE: "the setting that it names",
    WRONG_WEIGHTS: "engine.dtype or engine.sampler",
    ERROR: "the cause that its traceback shows",
}


@dataclass(frozen=True)
class Failure:
    """`kind` is a word or two for people; if `passes`, the unit is tried again in a new process."""

    kind: str
    reason: str
    passes: bool

    @property
    def text(self) -> str:
        """`not finite: step 1: loss is not finite (training.optimizer.lr=1e+30?)`."""
        return f"{self.kind}: {self.reason}"


def failure_of(error: Exception) -> Failure:
    """Classify the end of an attempt by its `error`."""
    lines = str(error).strip().splitlines()
    last = lines[-1] if lines else type(error).__name__
    match error:
        case LeaseHeld():
            return Failure("taken", last, passes=False)
        case UserError():
            return Failure(MISTAKE, " ".join(lines), passes=False)
        case NotFinite():
            return Failure(NOT_FINITE, last, passes=False)
        case WrongWeights():
            return Failure(WRONG_WEIGHTS, last, passes=False)
        case EngineOutOfMemory():
            return Failure(OUT_OF_MEMORY, last, passes=True)
        case RankLost() | EngineLost():
            return Failure("lost", last, passes=True)
    full = full_disk(error)
    if full is not None:
        return Failure(
            DISK_FULL, f"{full.filename or 'file system'}: {full.strerror}", passes=False
        )
    named = f"{type(error).__name__}: {last}"
    if _is_out_of_memory(error):
        return Failure(OUT_OF_MEMORY, named, passes=True)
    if _is_lost(error):
        return Failure("lost", named, passes=True)
    if isinstance(error, OSError):
        return Failure("file system", named, passes=error.errno in PASSING_ERRORS)
    return Failure(ERROR, named, passes=False)


def remedy_of(text: str | None) -> str | None:
    """The input to change after a failure with this `text`; None if it may not come again."""
    return REMEDIES.get((text or "").partition(":")[0])


def full_disk(error: BaseException) -> OSError | None:
    """The error of a full disk that an error is, or that caused it; None for any other error.

    Some libraries report such an error of the system by its text alone.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in FULL:
            return cause
        text = str(cause)
        for number in FULL:
            if os.strerror(number) in text:
                return OSError(number, text.strip().splitlines()[-1])
        cause = cause.__cause__
    return None


def _is_out_of_memory(error: Exception) -> bool:
    import torch
    from ray import exceptions

    if isinstance(error, MemoryError | torch.OutOfMemoryError | exceptions.OutOfMemoryError):
        return True
    # torch on CPUs has no class for it.
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _is_lost(error: Exception) -> bool:
    """Whether a process, a node, an object of theirs or a device is gone."""
    import torch
    from ray import exceptions

    lost = (exceptions.RayActorError, exceptions.WorkerCrashedError, exceptions.ObjectLostError,
            exceptions.GetTimeoutError, exceptions.NodeDiedError, exceptions.LocalRayletDiedError,
            torch.AcceleratorError)  # fmt: skip
    return isinstance(error, lost)
