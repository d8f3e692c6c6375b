"""The Tune trainable: one reusable process that trains a unit or runs an evaluator.

Tune schedules and restarts; the run directories resume. A machine that lacks the requirements gives
its work back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ray
from ray import tune

from orchestrator.engines.interface import ModelFolder
from orchestrator.liveness.head_node import Head, end_without
from orchestrator.models.checkpoints import on_this_machine
from orchestrator.sweep.evaluator_process import EvaluatorProcess
from orchestrator.sweep.failures import full_disk
from orchestrator.sweep.requirements import lacking
from orchestrator.sweep.schedule import Evaluating
from orchestrator.sweep.spec import FULL_DISK, LACK, UNFIT, Sweep
from orchestrator.sweep.training_process import TrainingProcess


class WorkTrainable(tune.Trainable):
    """Each Tune step trains to the next checkpoint or samples a slice."""

    _process: TrainingProcess | EvaluatorProcess | None = None

    def setup(self, config: dict[str, Any], sweep: Sweep) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Set up the process for Tune, which passes the `sweep` of `tune.with_parameters`."""
        self._sweep = sweep
        self._config = config
        # A cluster that the user started outlives its driver, and this process would outlive the
        # cluster's head.
        if sweep.requirements:
            end_without(Head(ray.get_runtime_context().gcs_address))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self._config = new_config
        return True

    def step(self) -> dict[str, Any]:
        if self._process is None:
            lack = lacking(self._sweep.requirements)
            if lack is not None:
                return {"done": True, UNFIT: ray.get_runtime_context().get_node_id(), LACK: lack}
            work = self._sweep.work_of(self._config)
            sweep = _on_this_machine(self._sweep)
            if isinstance(work, Evaluating):
                self._process = EvaluatorProcess(sweep, work)
            else:
                self._process = TrainingProcess(sweep, work)
        try:
            return self._process.step()
        except Exception as error:
            full = full_disk(error)
            if full is None:
                raise
            return {"done": True, FULL_DISK: [full.errno, full.strerror, full.filename]}

    def cleanup(self) -> None:
        if self._process is not None:
            self._process.end("stopped")
            self._process = None


def _on_this_machine(sweep: Sweep) -> Sweep:
    """The sweep with the paths of its models on this machine."""
    pairs: dict[str, tuple[ModelFolder, ModelFolder]] = {}
    for name, (student, teacher) in sweep.pairs.items():
        pairs[name] = (on_this_machine(student), on_this_machine(teacher))
    return replace(sweep, pairs=pairs)
