"""A unit as a Ray Tune trainable. Tune schedules and restarts; the run directory resumes."""

from __future__ import annotations

import logging
import os
import socket
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import tune

from orchestrator.records.lease import LEASE_PATIENCE_S, LeaseHeld
from orchestrator.records.log import LogHandler
from orchestrator.records.provenance import provenance
from orchestrator.records.pulse import Pulse, pulse_path
from orchestrator.records.writer import RunWriter
from orchestrator.sweep.failures import Failure, failure_of
from orchestrator.trial.assignment import Assignment
from orchestrator.workers.spec import WorkerSpec, resolved

if TYPE_CHECKING:
    from orchestrator.trial.loop import Progress
    from orchestrator.workers.roles import Roles


class UnitTrainable(tune.Trainable):
    """Each Tune step runs the unit to its next checkpoint; the process is reused for the next unit."""

    _assignments: dict[str, Assignment]
    _runs: Path
    _run: RunWriter | None = None
    _roles: Roles | None = None
    _pulse: Pulse | None = None
    _progress: Iterator[Progress] | None = None
    _attempt = 1
    _warnings: logging.Handler = logging.NullHandler()

    def setup(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, config: dict[str, Any], assignments: dict[str, Assignment], runs: str, sweep: str, attempts: int
    ) -> None:
        """Tune's hook; all but `config` comes through `tune.with_parameters`.

        `sweep` names the wave, which makes at most `attempts` at a unit.
        """
        self._assignments, self._runs = assignments, Path(runs)
        self._sweep, self._attempts = sweep, attempts
        self._unit = config["unit"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self._unit = new_config["unit"]
        return True

    def step(self) -> dict[str, Any]:
        try:
            self._progress = self._progress or self._begin()
            point = next(self._progress, None)
        except Exception as error:
            if self._fail(failure_of(error)):
                raise
            return {"done": True, "failed": True}
        except BaseException:
            self._end(None)
            raise
        if point is None:
            self._end(None, "nothing more to do for now")
            return {"done": True}
        return {"unit_step": point.step, "score": point.score}

    def cleanup(self) -> None:
        self._end(None)

    def _begin(self) -> Iterator[Progress]:
        # Here and not above: the driver imports this file too, and needs neither torch nor transformers.
        from orchestrator.trial.loop import run_unit
        from orchestrator.workers.actors import start_roles

        assignment = self._assignments[self._unit]
        spec = assignment.spec
        self._run = _open(self._runs, spec.unit.id)
        self._pulse = Pulse(pulse_path(self._runs, spec.unit.id), ray.get_runtime_context().get_node_id())
        self._open_log(self._run, spec)
        self._run.describe(resolved(spec), provenance, spec.trained_from)
        self._roles = start_roles(spec)
        return run_unit(assignment, self._run, self._roles)

    def _open_log(self, run: RunWriter, spec: WorkerSpec) -> None:
        self._attempt = run.log.begin(self._sweep, self._attempts)
        where = f"process {os.getpid()} on {socket.gethostname()}, placement {spec.unit.placement.mode}"
        run.log.line(f"attempt {self._attempt} of {self._attempts}: {where}")
        self._warnings = LogHandler(run.log)
        logging.captureWarnings(True)
        logging.getLogger().addHandler(self._warnings)

    def _fail(self, failure: Failure) -> bool:
        """End the attempt; whether Tune should make another one."""
        story = f"{failure.text}\n{traceback.format_exc().rstrip()}"
        if failure.passes and self._attempt < self._attempts:
            self._end(None, f"attempt {self._attempt} of {self._attempts} failed and is made again: {story}")
            return True
        tried = f" (attempt {self._attempt} of {self._attempts})" if failure.passes else ""
        self._end(failure.text + tried, f"failed: {story}")
        return failure.passes  # in the last attempt, too: the process may not be fit for another unit

    def _end(self, error: str | None, last_line: str = "stopped") -> None:
        roles, run, pulse = self._roles, self._run, self._pulse
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
                    run.fail(error, traceback.format_exc())
                run.close()


def _open(runs: Path, unit_id: str) -> RunWriter:
    deadline = time.monotonic() + LEASE_PATIENCE_S
    while True:
        try:
            return RunWriter(runs, unit_id)
        except LeaseHeld:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
