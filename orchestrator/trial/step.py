"""One step of training: prompts → behavior → teacher → learner → log."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from orchestrator.data.prompts import response_text
from orchestrator.data.training_set import TrainingPrompt, TrainingSet
from orchestrator.errors import NotFinite
from orchestrator.experiment.methods import METHODS, behavior_at
from orchestrator.grading.grader import Grader
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.policy.spec import Objective
from orchestrator.records.rundir import RunWriter
from orchestrator.rollouts import Request, Rollouts, TeacherScores
from orchestrator.trial import diagnostics
from orchestrator.workers.roles import Roles
from orchestrator.workers.spec import WorkerSpec


@dataclass(frozen=True)
class TrainingStep:
    """What every step of a unit shares."""

    spec: WorkerSpec
    run: RunWriter
    roles: Roles
    data: TrainingSet
    tokenizer: PreTrainedTokenizerBase
    grader: Grader

    def take(self, step: int) -> None:
        """Sample, score, learn and log step `step`; NotFinite names the step at which training diverged."""
        try:
            self._take(step)
        except NotFinite as error:
            rate = self.spec.setup.training.optimizer.lr
            raise NotFinite(f"step {step}: {error} (training.optimizer.lr={rate:g}?)") from error

    def _take(self, step: int) -> None:
        unit, training, roles = self.spec.unit, self.spec.setup.training, self.roles
        clock = Clock()
        prompts = self.data.batch(unit.first_batch + step, training.prompts_per_step)
        requests = self.requests(step, prompts)
        if unit.kind == "sft":
            rollouts = roles.teacher.sample(requests)
            scores = None
            clock.lap("rollout")
        else:
            roles.rollout.load(roles.learner.weights())
            rollouts = roles.rollout.sample(requests, behavior_at(unit.method, unit.knobs, step))
            clock.lap("rollout")
            scores = rollouts.teacher or roles.teacher.score(rollouts)
            clock.lap("score")
        texts, rewards = self.rewards(rollouts, prompts)
        clock.lap("reward")
        learned = roles.learner.step(rollouts, scores, self.objective(step), step)
        _check_finite(learned)
        clock.lap("learn")
        self.log(step, rollouts, scores, rewards, texts, learned)
        self.run.append_timing({"step": step, "phase": "train", **clock.laps})

    def requests(self, step: int, prompts: list[tuple[int, TrainingPrompt]]) -> list[Request]:
        """samples_per_prompt requests for each prompt, in prompt order."""
        unit, training = self.spec.unit, self.spec.setup.training
        purpose = Purpose.SFT if unit.kind == "sft" else Purpose.TRAINING
        return [
            Request(prompt.ids, SequenceKey(purpose, unit.seed, step, index, sample))
            for index, prompt in prompts
            for sample in range(training.samples_per_prompt)
        ]

    def objective(self, step: int) -> Objective:
        """What this step minimises."""
        unit, training = self.spec.unit, self.spec.setup.training
        if unit.kind == "sft":
            return Objective("nll")
        assert unit.method is not None
        return METHODS[unit.method].objective(unit.knobs, training, step, unit.steps)

    def rewards(
        self, rollouts: Rollouts, prompts: list[tuple[int, TrainingPrompt]]
    ) -> tuple[list[str], list[float | None]]:
        """Texts of all responses, and 1.0 or 0.0 for each whose prompt has a gold."""
        golds = {index: prompt.problem.gold for index, prompt in prompts}
        eos = self.spec.setup.student.eos
        texts, rewards = [], []
        for row, request in enumerate(rollouts.requests):
            text = response_text(rollouts.response(row), eos, self.tokenizer)
            gold = golds[request.key.prompt]
            texts.append(text)
            rewards.append(None if gold is None else float(self.grader.grade(gold, text).correct))
        return texts, rewards

    def log(
        self,
        step: int,
        rollouts: Rollouts,
        scores: TeacherScores | None,
        rewards: list[float | None],
        texts: list[str],
        learned: dict[str, float],
    ) -> None:
        """A row for the step, a row for each rollout."""
        kept = self.spec.runtime.rollout_texts
        metrics = diagnostics.step_metrics(rollouts, scores, rewards)
        self.run.append("metrics.jsonl", [{"step": step, **learned, **metrics}])
        self.run.append("rollouts.jsonl", diagnostics.rollout_rows(step, rollouts, scores, rewards, texts[:kept]))


def _check_finite(learned: dict[str, float]) -> None:
    for name, value in learned.items():
        if not math.isfinite(value):
            raise NotFinite(f"{name} is not finite")


class Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name], self._last = round(now - self._last, 4), now
