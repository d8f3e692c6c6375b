"""Decides the response to a failure: a killed or frozen process, a dead cluster, an error.

Recovery needs nothing from a process that died: the commits in the run directory say where to go
on.

- The process of a unit: Tune sees that it is gone and makes another attempt (`tuner.ATTEMPTS` in
  all) in a new process. The new process opens the run directory, cuts its logs back to the last
  commit (`records.writer`) and trains on from there, to the same bytes.
- An evaluator: its claim lapses with its lock, and the next evaluator samples the slice from its
  start (`liveness.claims`). Slices are written whole or not at all.
- A frozen process: the watchdog (`liveness.frozen_trials`) kills it, and one of the two cases above
  follows.
- The driver, `trb submit`: `liveness.driver_death` kills the rest of its private cluster within
  seconds. The same command resumes the sweep.
- A server of Ray: `liveness.head_node` ends the driver, with one line, and the processes on all
  nodes. The same command resumes the sweep.
- A node: its processes are lost processes, and other nodes get their work.

`failure_of` classifies an attempt that ends with an error. A user's mistake, a diverged run or a
programming error would recur; a lost process, node or device would not, nor a lack of memory with
smaller batches. The process of the attempt calls it, so torch and Ray are imported already.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from orchestrator.errors import EngineLost, LeaseHeld, NotFinite, RankLost, UserError, WrongWeights

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
            return Failure("mistake", " ".join(lines), passes=False)
        case NotFinite():
            return Failure("not finite", last, passes=False)
        case WrongWeights():
            return Failure("wrong weights", last, passes=True)
        case RankLost() | EngineLost():
            return Failure("lost", last, passes=True)
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
