"""What Tune runs, one thing at a time in a process that it uses again: the training of a unit, or an evaluator.

Tune schedules and restarts; the run directories resume.
"""

from __future__ import annotations

from typing import Any

from ray import tune

from orchestrator.sweep.evaluator_process import EvaluatorProcess
from orchestrator.sweep.schedule import Evaluating
from orchestrator.sweep.shared import Sweep
from orchestrator.sweep.training_process import TrainingProcess


class WorkTrainable(tune.Trainable):
    """Each Tune step trains to the next checkpoint or samples a slice."""

    _process: TrainingProcess | EvaluatorProcess | None = None

    def setup(self, config: dict[str, Any], sweep: Sweep) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Tune's hook; `sweep` comes through `tune.with_parameters`."""
        self._sweep, self._config = sweep, config

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self._config = new_config
        return True

    def step(self) -> dict[str, Any]:
        if self._process is None:
            work = self._sweep.work_of(self._config)
            if isinstance(work, Evaluating):
                self._process = EvaluatorProcess(self._sweep, work)
            else:
                self._process = TrainingProcess(self._sweep, work)
        return self._process.step()

    def cleanup(self) -> None:
        if self._process is not None:
            self._process.end("stopped")
            self._process = None
