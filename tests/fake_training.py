"""Trials that train nothing: their processes import no torch, and are up in a third of the time.

For tests of what is around the training: when it stops, what it leaves behind, and what the command
says (`tests.sweeps.FAKE_TRB`). All else is the real thing: cluster, driver, leases, logs, commits
and signs of life.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import ray

from orchestrator.experiment.units import checkpoint_steps
from orchestrator.liveness.heartbeat import Pulse, pulse_path
from orchestrator.records.writer import RunWriter
from orchestrator.sweep import processes
from orchestrator.sweep.prepare import worker_spec
from orchestrator.sweep.processes import WorkTrainable
from orchestrator.sweep.schedule import TrainUnit
from tests.fake_runs import metrics

STEP_S = 0.02  # so that there is a middle


class FakeTraining(processes.TrainingProcess):
    """An attempt whose steps are rows and whose checkpoints are empty files."""

    def _begin(self) -> Iterator[int]:
        study, unit = self._sweep.study, self._unit
        self._run = processes._open(study.runs, unit.id)
        self._pulse = Pulse(
            pulse_path(study.runs, unit.id), ray.get_runtime_context().get_node_id()
        )
        self._open_log(
            self._run,
            worker_spec(unit, study.experiment, study.runs, self._sweep.pairs[unit.setup]),
        )
        self._run.describe({}, dict)
        return self._steps(self._run)

    def _steps(self, run: RunWriter) -> Iterator[int]:
        checkpoints = checkpoint_steps(
            self._unit, self._sweep.study.experiment.setups[self._unit.setup]
        )
        for step in range(run.next_step, self._unit.steps):
            time.sleep(STEP_S)
            run.append("metrics.jsonl", [metrics(step)])
            run.append_timing({"step": step, "phase": "train", "rollout": STEP_S})
            if step + 1 in checkpoints:
                run.new_checkpoint(step + 1, lambda folder: (folder / "model.safetensors").touch())
                run.commit(step + 1)
                yield step + 1


class FakeProcess(WorkTrainable):
    """A process of the sweep for such trials; an evaluator would have nothing to sample from."""

    def step(self) -> dict[str, Any]:
        work = self._sweep.work_of(self._config)
        assert isinstance(work, TrainUnit)
        self._process = self._process or FakeTraining(self._sweep, work)
        return self._process.step()
