"""Trains a unit in a process of the sweep: attempt, log, signs of life, failure."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from orchestrator.engines.budget import MOST_TOKENS
from orchestrator.errors import LeaseHeld
from orchestrator.liveness.lease import LEASE_PATIENCE_S
from orchestrator.liveness.processes import described, place
from orchestrator.liveness.pulse import Pulse, loading, pulse_path
from orchestrator.records.columns import LOADING
from orchestrator.records.log import LogHandler
from orchestrator.records.provenance import provenance
from orchestrator.records.writer import RunWriter
from orchestrator.start_up import quick_imports
from orchestrator.sweep.failures import DISK_FULL, OUT_OF_MEMORY, Failure, failure_of
from orchestrator.sweep.prepare import worker_spec
from orchestrator.sweep.schedule import TrainUnit
from orchestrator.sweep.spec import Sweep
from orchestrator.workers.spec import WorkerSpec, resolved

if TYPE_CHECKING:
    from orchestrator.workers.roles import Roles


class TrainingProcess:
    """One attempt at a unit; each step runs it to its next checkpoint."""

    def __init__(self, sweep: Sweep, work: TrainUnit):
        self._sweep = sweep
        self._unit = work.unit
        self._run: RunWriter | None = None
        self._roles: Roles | None = None
        self._pulse: Pulse | None = None
        self._progress: Iterator[int] | None = None
        self._attempt = 1
        self._warnings: logging.Handler = logging.NullHandler()

    def step(self) -> dict[str, Any]:
        """Return Tune's result; raise errors that another attempt in a new process may not meet."""
        try:
            self._progress = self._progress or self._begin()
            checkpoint = next(self._progress, None)
        except Exception as error:
            if self._fail(failure_of(error)):
                raise
            return {"done": True, "failed": True}
        except BaseException:
            self.end("stopped")
            raise
        if checkpoint is None:
            self.end("trained")
            return {"done": True}
        return {"unit_step": checkpoint}

    def end(self, last_line: str, error: str | None = None) -> None:
        """Release the roles, the run directory and the pulse; `last_line` goes to the log."""
        roles, run, pulse = self._roles, self._run, self._pulse
        # Forgotten before they are closed, so that a failure below does not close them twice.
        self._roles = self._run = self._progress = self._pulse = None
        try:
            if roles is not None:
                roles.close()
        finally:
            if pulse is not None:
                pulse.stop()
            if run is not None:
                logging.getLogger().removeHandler(self._warnings)
                run.log.line(last_line)
                if error is not None:
                    with suppress(OSError):  # a full disk takes no note, and the log has it or not
                        run.fail(error, traceback.format_exc())
                run.close()

    def _begin(self) -> Iterator[int]:
        study, unit = self._sweep.study, self._unit
        spec = worker_spec(unit, study.experiment, study.runs, self._sweep.pairs[unit.setup])
        self._run = _open(study.runs, unit.id)
        if self._run.trained:  # by the process of another sweep, whose lease this one waited for
            return iter(())
        self._pulse = Pulse(
            pulse_path(study.runs, unit.id), ray.get_runtime_context().get_node_id()
        )
        self._open_log(self._run, spec)
        self._run.log.enter(LOADING)
        # Imported here because the driver imports this file and needs neither torch nor
        # transformers.
        with loading(), quick_imports():
            from orchestrator.trial.training_loop import run_unit
            from orchestrator.workers.actors import start_roles

        self._run.describe(resolved(spec), provenance, spec.trained_from)
        spec = leaner(spec, self._run.log.out_of_memory)
        self._roles = start_roles(spec)
        return run_unit(spec, self._run, self._roles)

    def _open_log(self, run: RunWriter, spec: WorkerSpec) -> None:
        self._attempt = run.log.begin(self._sweep.name, self._sweep.attempts)
        where = f"{described(place())}, placement {spec.unit.placement.mode}"
        run.log.line(f"attempt {self._attempt} of {self._sweep.attempts}: {where}")
        self._warnings = LogHandler(run.log)
        logging.captureWarnings(True)
        logging.getLogger().addHandler(self._warnings)

    def _fail(self, failure: Failure) -> bool:
        """End the attempt; return whether its error should be raised."""
        story = f"{failure.text}\n{traceback.format_exc().rstrip()}"
        attempt = f"attempt {self._attempt} of {self._sweep.attempts}"
        if failure.kind == OUT_OF_MEMORY and self._run is not None:
            self._run.log.note_out_of_memory()
        if failure.passes and self._attempt < self._sweep.attempts:
            self.end(f"{attempt} failed and is made again: {story}")
            return True
        tried = f" ({attempt})" if failure.passes else ""
        self.end(f"failed: {story}", failure.text + tried)
        # After the last attempt, too: the process may not be fit for another unit. `WorkTrainable`
        # turns the error of a full disk into the end of the sweep.
        return failure.passes or failure.kind == DISK_FULL


def leaner(spec: WorkerSpec, out_of_memory: int) -> WorkerSpec:
    """Halve the micro-batch once for each attempt that ran `out_of_memory`.

    The learner also computes its layers again instead of keeping them, and takes turns on its GPU.
    A serving engine takes a smaller cache, too (`sglang.calls.leaner`).
    """
    if not out_of_memory:
        return spec
    tokens = max(1, (spec.runtime.micro_batch_tokens or MOST_TOKENS) >> out_of_memory)
    runtime = replace(spec.runtime, micro_batch_tokens=tokens, checkpointing=True, resident=False)
    return replace(spec, runtime=runtime, shortages=out_of_memory)


def _open(runs: Path, unit_id: str) -> RunWriter:
    """Open a run directory; wait for the lease of a process that is still being ended."""
    deadline = time.monotonic() + LEASE_PATIENCE_S
    while True:
        try:
            return RunWriter(runs, unit_id)
        except LeaseHeld:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
