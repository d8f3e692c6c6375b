"""The loop of one unit, from the state of its run directory to the end of its training.

Evaluators evaluate its checkpoints: see `trial.evaluation_loop`.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from orchestrator.data.training_set import load_training_set
from orchestrator.engines.device import watch_gpu
from orchestrator.engines.tokenizer import open_tokenizer
from orchestrator.experiment.units import checkpoint_steps
from orchestrator.grading.grader import shared_grader
from orchestrator.liveness import pulse
from orchestrator.liveness.processes import described
from orchestrator.models.settings_files import complete_settings
from orchestrator.records.columns import OPENING, READING, START, TRAINING
from orchestrator.records.writer import RunWriter
from orchestrator.trial.step import TrainingStep
from orchestrator.workers.roles import Learner, Roles, Rollout, Teacher
from orchestrator.workers.spec import WorkerSpec


def run_unit(spec: WorkerSpec, run: RunWriter, roles: Roles) -> Iterator[int]:
    """Train the missing steps; yields each step after which a checkpoint was committed."""
    if run.trained:
        return
    yield from Trial(spec, run, roles).train()
    run.finish()


class Trial:
    """One unit in training."""

    def __init__(self, spec: WorkerSpec, run: RunWriter, roles: Roles):
        self.spec = spec
        self.unit = spec.unit
        self.setup = spec.setup
        self.run = run
        self.roles = roles
        self.started: set[str] = set()

    @functools.cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The setup's one tokenizer."""
        return open_tokenizer(self.spec.teacher)

    def train(self) -> Iterator[int]:
        """Train steps `run.next_step` … `unit.steps` − 1."""
        if self.run.next_step >= self.unit.steps:
            return
        if self.run.next_step:
            self.run.verify_checkpoint(self.run.next_step, learner=True)
        self.run.log.line(f"training from step {self.run.next_step} of {self.unit.steps}")
        self.run.log.enter(READING)
        batches = self.unit.first_batch + self.unit.steps
        data = load_training_set(self.setup, self.spec.data_dir, self.tokenizer, batches)
        self.run.describe_data(data.counts())
        self.run.log.enter(OPENING)
        self.start(self.run.next_step, learner=self.roles.learner)
        if self.unit.is_supervised:
            self.start(self.run.next_step, teacher=self.roles.teacher)
        else:
            # The teacher starts with the first step that it scores: blended steps bring their scores.
            self.start(self.run.next_step, rollout=self.roles.rollout)
        if self.run.next_step:
            with pulse.loading():
                self.roles.learner.restore(self.run.checkpoint_path(self.run.next_step))
        checkpoints = checkpoint_steps(self.unit, self.setup)
        grader = shared_grader(self.spec.runtime.grader_deadline_s)
        place = self.roles.learner.place()
        watch = watch_gpu()
        training_step = TrainingStep(
            self.spec, self.run, self.roles, data, self.tokenizer, grader, self.start, place, watch
        )
        try:
            for k in range(self.run.next_step, self.unit.steps):
                self.run.log.enter(TRAINING)
                training_step.take(k)
                if k + 1 in checkpoints:
                    self.run.new_checkpoint(k + 1, self.save)
                    self.run.commit(k + 1)
                    self.run.log.line(f"checkpoint of step {k + 1} of {self.unit.steps}")
                    yield k + 1
        finally:
            if watch is not None:
                watch.close()

    def start(self, step: int, **roles: Rollout | Teacher | Learner) -> None:
        """Start the `roles` that are not up yet, before step `step` and outside of its time."""
        for name, role in roles.items():
            if name not in self.started:
                begun = time.monotonic()
                with pulse.loading():
                    role.start(step)
                seconds = round(time.monotonic() - begun, 3)
                row = {"step": step, "phase": START, "role": name, "seconds": seconds}
                place = role.place()
                self.run.append_timing(row | place)
                if place["process"] != os.getpid():  # the attempt's first line names this process
                    self.run.log.line(f"{name}: {described(place)}")
                self.started.add(name)

    def save(self, folder: Path) -> None:
        """Save a complete model folder: weights, configuration, tokenizer, the learner's state."""
        self.roles.learner.save(folder)
        self.tokenizer.save_pretrained(folder)
        complete_settings(folder, self.setup.student.stop_ids)
