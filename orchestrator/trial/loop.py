"""The loop of one unit, from wherever its run directory stands to its end."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from orchestrator.data.training_set import load_training_set
from orchestrator.errors import NotFinite
from orchestrator.experiment import evaluations
from orchestrator.experiment.evaluations import Sampling
from orchestrator.experiment.units import checkpoint_steps
from orchestrator.grading.grader import Grader
from orchestrator.models.tokenizer import open_tokenizer
from orchestrator.records.columns import EVALUATE, EVALUATING, RESCORING, START, TRAINING
from orchestrator.records.problem_record import merge
from orchestrator.records.writer import RunWriter
from orchestrator.selection.scores import best_step, mean_score
from orchestrator.trial.assignment import Assignment
from orchestrator.trial.step import TrainingStep
from orchestrator.workers.roles import Evaluator, Learner, Roles, Rollout, Teacher


@dataclass(frozen=True)
class Progress:
    """Where a unit stands after a checkpoint; `score` is the mean pass@1 over its benchmarks, if evaluated."""

    step: int
    score: float | None


def run_unit(assignment: Assignment, run: RunWriter, roles: Roles) -> Iterator[Progress]:
    """Evaluate what is missing, train what is missing; yields at every checkpoint."""
    trial = Trial(assignment, run, roles)
    yield from trial.catch_up()
    if run.trained:
        return
    yield from trial.train()
    run.finish()


class Trial:
    """One unit being run."""

    def __init__(self, assignment: Assignment, run: RunWriter, roles: Roles):
        spec = assignment.spec
        self.assignment, self.spec, self.unit, self.setup = assignment, spec, spec.unit, spec.setup
        self.run, self.roles = run, roles
        self._verified: set[int] = set()  # steps of checkpoints
        self.started: set[str] = set()

    @functools.cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The setup's one tokenizer."""
        return open_tokenizer(self.spec.teacher)

    def catch_up(self) -> Iterator[Progress]:
        """Evaluate the checkpoints that are there: after a kill, or when benchmarks or samples were added."""
        if self.unit.is_untrained:
            yield from self.evaluate(0, None)
        elif self.unit.is_trial:
            for step in self.run.committed_checkpoints():
                yield from self.evaluate(step, self.run.checkpoint_path(step))
            self.prune()

    def train(self) -> Iterator[Progress]:
        """Steps `run.next_step` … `unit.steps` − 1."""
        if self.run.next_step >= self.unit.steps:
            return
        if self.run.next_step:
            self.run.verify_checkpoint(self.run.next_step, learner=True)
        self.run.log.line(f"training from step {self.run.next_step} of {self.unit.steps}")
        data = load_training_set(self.setup, self.spec.data_dir, self.tokenizer)
        self.run.describe_data(data.counts())
        self.start(learner=self.roles.learner, teacher=self.roles.teacher)
        if self.unit.is_trial:
            self.start(rollout=self.roles.rollout)
        if self.run.next_step:
            self.roles.learner.restore(self.run.checkpoint_path(self.run.next_step))
        checkpoints = checkpoint_steps(self.unit, self.setup)
        with Grader(deadline_s=self.spec.runtime.grader_deadline_s) as grader:
            training_step = TrainingStep(self.spec, self.run, self.roles, data, self.tokenizer, grader)
            for k in range(self.run.next_step, self.unit.steps):
                self.run.log.enter(TRAINING)
                training_step.take(k)
                if k + 1 in checkpoints:
                    self.run.new_checkpoint(k + 1, self.save)
                    self.run.commit(k + 1)
                    self.run.log.line(f"checkpoint of step {k + 1} of {self.unit.steps}")
                    yield from self.catch_up_at(k + 1)

    def start(self, **roles: Rollout | Teacher | Learner | Evaluator) -> None:
        """Bring up those of `roles` that are not up yet, so that no step or evaluation is charged for it."""
        for name, role in roles.items():
            if name not in self.started:
                begun = time.monotonic()
                role.start()
                seconds = round(time.monotonic() - begun, 3)
                row = {"step": self.run.next_step, "phase": START, "role": name, "seconds": seconds}
                self.run.append_timing(row)
                self.started.add(name)

    def save(self, folder: Path) -> None:
        """A complete model folder: weights, configuration, tokenizer and the learner's state."""
        self.roles.learner.save(folder)
        self.tokenizer.save_pretrained(folder)

    def catch_up_at(self, step: int) -> Iterator[Progress]:
        """Evaluate the checkpoint just made and drop those that are not kept."""
        if self.unit.is_trial:
            yield from self.evaluate(step, self.run.checkpoint_path(step))
            self.prune()
        else:
            yield Progress(step, None)

    def evaluate(self, step: int, checkpoint: Path | None) -> Iterator[Progress]:
        """Fill the gaps of one checkpoint, benchmark by benchmark; yields if there were any."""
        missing = [self.extend(wanted, n, checkpoint) for wanted, n in self.samples_wanted(step).items()]
        if any(missing):
            ids = evaluations.evaluation_ids(self.setup)
            score = mean_score(self.run, list(ids.values()), step)
            if score is not None:
                self.run.log.line(f"step {step}: pass@1 {100 * score:.1f} % over {len(ids)} benchmarks")
            yield Progress(step, score)

    def samples_wanted(self, step: int) -> dict[Sampling, int]:
        """Samples that a checkpoint gets: at once, or because its family asks for more."""
        at_once = evaluations.samples_at_once(self.setup.evaluation, self.unit)
        wanted = {Sampling(benchmark, step, 0): n for benchmark, n in at_once.items()}
        asked = {sampling: n for sampling, n in self.assignment.wanted.items() if sampling.step == step}
        return wanted | {sampling: max(n, wanted.get(sampling, 0)) for sampling, n in asked.items()}

    def extend(self, sampling: Sampling, wanted: int, checkpoint: Path | None) -> bool:
        """Take the samples that one evaluation of a checkpoint lacks; False if it lacks none."""
        benchmark, step, draw = sampling
        evaluation_id = evaluations.drawn_evaluation_ids(self.setup, draw)[benchmark]
        records = self.run.evaluation(evaluation_id, step)
        have = records[0].n if records else 0
        if have >= wanted:
            return False
        if checkpoint is not None:
            self.verify(step)
        self.start(evaluator=self.roles.evaluator)
        started = time.monotonic()
        responses = (wanted - have) * evaluations.problems_wanted(self.setup.evaluation, benchmark)
        name = RESCORING if draw == evaluations.FRESH else EVALUATING
        self.run.log.enter(name, benchmark, step, responses)
        try:
            fresh = self.roles.evaluator.evaluate(checkpoint, benchmark, range(have, wanted), step, draw, self.run.path)
        except NotFinite as error:
            raise NotFinite(f"evaluating the checkpoint of step {step}: {error}") from error
        if records and draw == 0 and self.setup.evaluation.budget == "adaptive":
            self.run.note_rung(evaluation_id, step)
        self.run.write_evaluation(evaluation_id, step, merge(records, fresh) if records else fresh)
        seconds = round(time.monotonic() - started, 3)
        row = {"step": step, "phase": EVALUATE, "benchmark": benchmark, "draw": draw, "responses": responses}
        self.run.append_timing(row | {"seconds": seconds})
        self.run.log.line(f"{name} step {step}: {responses} responses of {benchmark} in {seconds:.1f} s")
        return True

    def verify(self, step: int) -> None:
        """Raise Damaged if the checkpoint that is to be evaluated is not what was written; looks once."""
        if step not in self._verified:
            self.run.verify_checkpoint(step)
            self._verified.add(step)

    def prune(self) -> None:
        """Keep the best checkpoint and the last, unless more are wanted."""
        if self.spec.runtime.keep == "best" and self.assignment.prunes and self.unit.is_trial:
            best = best_step(self.run, list(evaluations.evaluation_ids(self.setup).values()))
            last = set() if self.run.next_step == self.unit.steps and best is not None else {self.run.next_step}
            self.run.drop_checkpoints(last | ({best} if best is not None else set()))
