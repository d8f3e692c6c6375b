"""The loop of one unit, from the state of its run directory to the end of its training.

Evaluators evaluate its checkpoints: see `trial.evaluation_loop`.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from orchestrator.data.prompts import graded_text, response_text
from orchestrator.data.training_set import TrainingPrompt, TrainingSet, load_training_set
from orchestrator.engines.budget import Situation, is_pooled, scores_beside
from orchestrator.engines.catalog import ENGINES, sampler_of
from orchestrator.engines.common.causal import open_tokenizer
from orchestrator.engines.device import PeakWatch, granted, watch_gpu
from orchestrator.errors import NotFinite, WrongWeights
from orchestrator.experiment.evaluation_protocol import held_out_prompts
from orchestrator.experiment.methods import METHODS, behavior_at, response_limit
from orchestrator.experiment.units import checkpoint_steps, sampled_steps
from orchestrator.grading.gold import Gold
from orchestrator.grading.grader import Grader, shared_grader
from orchestrator.liveness import heartbeat
from orchestrator.liveness.processes import described
from orchestrator.models.folders import complete_settings
from orchestrator.policy import laws
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.policy.spec import BatchBudget, Behavior, Objective, Student, TrustRegion
from orchestrator.records.log import (
    BUDGET_GIB,
    HELD_OUT,
    LEARN,
    MEASURE,
    OPENING,
    PASSES,
    PEAK_GIB,
    READING,
    REWARD,
    ROLLOUT,
    SCORE,
    START,
    TRAIN,
    TRAINING,
)
from orchestrator.records.writer import RunWriter
from orchestrator.rollouts import Request, Rollouts
from orchestrator.trial import diagnostics
from orchestrator.workers.digests import RolloutDigest, ScoresDigest
from orchestrator.workers.members import (
    LearnerWorker,
    RolloutWorker,
    TeacherWorker,
    job_of,
    lora_of,
)
from orchestrator.workers.roles import Handle, Roles, refresh, start
from orchestrator.workers.spec import RoleName, WorkerSpec

# --- one step of training: prompts → behavior → teacher → learner → log ---


class TrainingStep:
    """Takes the steps of a trial, one by one; `watch` looks at the GPU of this process."""

    def __init__(self, trial: Trial, data: TrainingSet, watch: PeakWatch | None = None):
        self.trial, self.data, self.watch = trial, data, watch
        self.spec, self.run, self.roles = trial.spec, trial.run, trial.roles
        self.tokenizer, self.grader = trial.tokenizer, trial.grader
        self.noted: set[str] = set()  # lines that this attempt has logged once

    def take(self, step: int) -> None:
        """Sample, score, learn and log step `step`.

        Raises NotFinite, which names the step, if training has diverged, and WrongWeights if the
        sampler did not have the learner's weights.
        """
        try:
            self._take(step)
        except NotFinite as error:
            lora = lora_of(self.spec.unit)
            rate = f"training.optimizer.lr={self.spec.setup.training.optimizer.lr:g}"
            if lora is not None:
                rate = f"the adapters' lr={lora.lr:g}"
            raise NotFinite(f"step {step}: {error} ({rate}?)") from error

    def _take(self, step: int) -> None:
        unit = self.spec.unit
        training = self.spec.setup.training
        roles = self.roles
        clock = Clock(self.watch)
        prompts = self.data.batch(unit.first_batch + step, training.prompts_per_step)
        requests = self.requests(step, prompts)
        keeps = step in sampled_steps(unit, self.spec.setup)
        traced = self.spec.runtime.rollout_texts if keeps else 0
        if unit.is_supervised:
            rollouts, sampled = roles.call_for_two(
                "teacher", TeacherWorker.sample, requests, traced
            )
            digest, notes = sampled.get(), {}
        else:
            behavior = self.behavior(step)
            scored = self.scores_beside(step, behavior)
            if scored:
                self.trial.start(step, "teacher")
                clock.skip()
            refresh(roles, step)
            rollouts, digest, notes = self.sample(step, requests, behavior, traced, scored)
        clock.lap(ROLLOUT)
        # No objective uses rewards, so grading takes place beside scoring and learning: REWARD is
        # the time that these do not hide.
        with ThreadPoolExecutor(1, thread_name_prefix="grading") as beside:
            grading = beside.submit(self.rewards, requests, digest, prompts)
            if not self.spec.runtime.grade_beside:
                grading.result()
                clock.lap(REWARD)
            judged, learned = self.learn(step, rollouts, digest, clock)
            texts, rewards = grading.result()
        clock.lap(REWARD)
        self.log(step, requests, digest, judged, rewards, texts, learned)
        if digest.traces:
            golds = {index: prompt.problem.gold for index, prompt in prompts}
            samples = diagnostics.rollout_samples(requests, digest, rewards, golds, self.tokenizer)
            self.run.write_samples(step, samples)
        place = self.trial.places["learner"]
        self.run.append_timing(
            {"step": step, "phase": TRAIN, "tokens": digest.sampled["response_tokens"]}
            | {**clock.laps, **notes, **place, **self.memory(step, clock)}
        )

    def behavior(self, step: int) -> Behavior:
        """The behavior of a step; that of a batch's budget with the β that the last batch suggests.

        The suggestion rests on rows of `metrics.jsonl` alone, so a resumed trial goes on alike.
        """
        behavior = behavior_at(self.spec.unit.method, self.spec.unit.knobs, step)
        if isinstance(behavior, BatchBudget) and step > 0:
            last = laws.Pass.of(self.run.metrics()[-1])
            return BatchBudget(behavior.epsilon, laws.next_beta([last], behavior.epsilon))
        return behavior

    def sample(
        self, step: int, requests: list[Request], behavior: Behavior, traced: int, scored: bool
    ) -> tuple[Handle[Rollouts], RolloutDigest, dict[str, int]]:
        """Rollouts, their digest, and keys for the clock.

        The batch of a budget is sampled until its mean KL fits, each time with a better β, and the
        closest pass counts. On an engine that is not keyed only the first step does so: its passes
        differ by chance, and to choose among them would choose by chance.
        """
        unit, setup = self.spec.unit, self.spec.setup
        longest = response_limit(unit.method, unit.knobs, step, setup.training.max_response_tokens)
        engine = ENGINES[sampler_of(setup.engine.sampler, behavior.needs_teacher)]
        most = laws.MOST_PASSES if engine.keyed or step == 0 else 1
        passes: list[laws.Pass] = []
        kept: tuple[Handle[Rollouts], RolloutDigest] | None = None
        while True:
            asked = requests, behavior, longest, traced, scored
            rollouts, sampled = self.roles.call_for_two("rollout", RolloutWorker.sample, *asked)
            digest = sampled.get()
            if not isinstance(behavior, BatchBudget):
                return rollouts, digest, {}
            epsilon = behavior.epsilon
            passes.append(laws.Pass.of(digest.behavior))
            if kept is None or laws.closest(passes, epsilon) is passes[-1]:
                kept = rollouts, digest
            if passes[-1].fits(epsilon) or len(passes) == most:
                return kept[0], kept[1], {PASSES: len(passes)}
            behavior = BatchBudget(epsilon, laws.next_beta(passes, epsilon))

    def scores_beside(self, step: int, behavior: Behavior) -> bool:
        """Whether the teacher scores rollouts while others are sampled."""
        asked = scores_beside(self.spec.setup, self.spec.runtime, self.spec.unit.placement)
        return asked and self.objective(step).needs_teacher and not behavior.needs_teacher

    def learn(
        self, step: int, rollouts: Handle[Rollouts], digest: RolloutDigest, clock: Clock
    ) -> tuple[ScoresDigest | None, dict[str, float]]:
        """Score the rollouts and update the student; returns both digests.

        Blended rollouts bring their scores, and so do those that were scored beside sampling. The
        supervised stage needs none.
        """
        goal = self.objective(step)
        scores = None
        judged = digest.scores
        if judged is None and goal.needs_teacher:
            self.trial.start(step, "teacher")
            clock.skip()
            scores, scored = self.roles.call_for_two("teacher", TeacherWorker.score, rollouts)
            judged = scored.get()
        if judged is not None:
            clock.lap(SCORE)
        learned = self.roles.call("learner", LearnerWorker.step, rollouts, scores, goal, step).get()
        _check_finite(learned)
        self.check_sampler(step, learned)
        clock.lap(LEARN)
        return judged, learned

    def memory(self, step: int, clock: Clock) -> dict[str, dict[str, float]]:
        """GiB of the GPU at each phase's peak, beside its budget; empty without a watched GPU."""
        if not clock.peaks:
            return {}
        job = job_of(self.spec)
        unit = self.spec.unit
        sampling: Situation = "decoding"
        if unit.is_supervised:
            sampling = "answering"
        elif behavior_at(unit.method, unit.knobs, step).needs_teacher:
            sampling = "blending"
        situations: dict[str, Situation] = {ROLLOUT: sampling, SCORE: "scoring", LEARN: "learning"}
        peaks: dict[str, float] = {}
        budgets: dict[str, float] = {}
        for phase, gib in clock.peaks.items():
            if phase not in situations:  # grading takes no GPU
                continue
            peaks[phase] = gib
            budget = granted(job, situations[phase])
            if budget is not None:
                budgets[phase] = round(budget.total_gib, 2)
        return {PEAK_GIB: peaks, BUDGET_GIB: budgets}

    def requests(self, step: int, prompts: list[tuple[int, TrainingPrompt]]) -> list[Request]:
        """Make samples_per_prompt requests for each prompt, in prompt order."""
        unit = self.spec.unit
        purpose = Purpose.SFT if unit.is_supervised else Purpose.TRAINING
        requests: list[Request] = []
        for index, prompt in prompts:
            for sample in range(self.spec.setup.training.samples_per_prompt):
                key = SequenceKey(purpose, unit.seed, step, index, sample)
                requests.append(Request(prompt.ids, key))
        return requests

    def objective(self, step: int) -> Objective:
        """The objective that this step minimises."""
        unit = self.spec.unit
        training = self.spec.setup.training
        if unit.is_supervised:
            return Objective("nll")
        assert unit.method is not None
        return METHODS[unit.method].objective(unit.knobs, training, step, unit.steps)

    def rewards(
        self,
        requests: list[Request],
        digest: RolloutDigest,
        prompts: list[tuple[int, TrainingPrompt]],
    ) -> tuple[list[str], list[float | None]]:
        """Grade all responses together; return their texts and rewards.

        A reward is 1.0 or 0.0, and None for a prompt without a gold.
        """
        golds = {index: prompt.problem.gold for index, prompt in prompts}
        eos = self.spec.setup.student.closing_id
        texts = [response_text(response, eos, self.tokenizer) for response in digest.responses]
        asked: dict[int, tuple[Gold, str]] = {}
        for row, request in enumerate(requests):
            gold = golds[request.key.prompt]
            if gold is not None:
                asked[row] = (gold, graded_text(request.prompt_ids, texts[row], self.tokenizer))
        rewards: list[float | None] = [None] * len(requests)
        for row, grade in zip(asked, self.grader.grade_many(asked.values()), strict=True):
            rewards[row] = float(grade.correct)
        return texts, rewards

    def log(
        self,
        step: int,
        requests: list[Request],
        digest: RolloutDigest,
        scores: ScoresDigest | None,
        rewards: list[float | None],
        texts: list[str],
        learned: dict[str, float],
    ) -> None:
        """Append a row for the step and a row for each rollout."""
        kept = texts[: self.spec.runtime.rollout_texts]
        metrics = diagnostics.step_metrics(digest, scores, rewards)
        self.run.append("metrics.jsonl", [{"step": step, **learned, **metrics}])
        rows = diagnostics.rollout_rows(step, requests, digest, scores, rewards, kept)
        self.run.append("rollouts.jsonl", rows)
        self.note_rounding(step, learned)

    def check_sampler(self, step: int, learned: dict[str, float]) -> None:
        """Compare sampler and learner on the step's own tokens: both should hold the same weights.

        Logs once that they are far apart. Raises WrongWeights, which names the step, if they are
        too far; nothing of the step is written then.
        """
        try:
            note = diagnostics.sampler_gap_note(learned, self.spec.setup.engine.dtype)
        except WrongWeights as error:
            raise WrongWeights(f"step {step}: {error}") from None
        if note is not None and "gap" not in self.noted:
            self.noted.add("gap")
            self.run.log.line(f"step {step}: {note}")

    def note_rounding(self, step: int, learned: dict[str, float]) -> None:
        """Log once that rounding moves the student's policy further than its KL budget reaches."""
        unit = self.spec.unit
        if unit.is_supervised or "sampler_kl" not in learned or "rounding" in self.noted:
            return
        behavior = behavior_at(unit.method, unit.knobs, step)
        if (
            isinstance(behavior, TrustRegion | BatchBudget)
            and behavior.epsilon < learned["sampler_kl"]
        ):
            self.noted.add("rounding")
            self.run.log.line(
                f"step {step}: ε {behavior.epsilon:.2g} nats is below the {learned['sampler_kl']:.2g} "
                "nats between the sampler's and the learner's student (sampler_kl): from here on "
                "rounding moves the policy further than the KL budget reaches"
            )


def _check_finite(learned: dict[str, float]) -> None:
    for name, value in learned.items():
        if not math.isfinite(value):
            raise NotFinite(f"{name} is not finite")


class Clock:
    """Seconds between laps, added up by name.

    With a `watch` also the `peaks` of GPU memory in each lap, in GiB.
    """

    def __init__(self, watch: PeakWatch | None = None) -> None:
        self.laps: dict[str, float] = {}
        self.peaks: dict[str, float] = {}
        self._watch = watch
        self._last = time.monotonic()

    def skip(self) -> None:
        """Discard the time since the last lap."""
        self._last = time.monotonic()
        if self._watch is not None:
            self._watch.take()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = round(self.laps.get(name, 0.0) + now - self._last, 4)
        self._last = now
        if self._watch is not None:
            self.peaks[name] = round(max(self.peaks.get(name, 0.0), self._watch.take()), 2)


# --- held-out prompts: student → rollouts → teacher and student at their prefixes → log ---


class HeldOutPrompts:
    """The `prompts` that no trial of the setup takes, with their positions in the order.

    A trial measures itself on them at its start and at each checkpoint. Key and uniforms of a
    prompt are the same at every step of every trial, so that what two of them share cancels in
    their difference. Nothing that training reads is touched.
    """

    def __init__(self, trial: Trial, prompts: Sequence[tuple[int, TrainingPrompt]]):
        self.trial = trial
        self.requests: list[Request] = []
        for index, prompt in prompts:
            key = SequenceKey(Purpose.HELD_OUT, 0, 0, index, 0)
            self.requests.append(Request(prompt.ids, key))

    def measure(self, step: int) -> None:
        """Log KL(p‖q) on the student's own responses after `step` steps; nothing without prompts.

        A student that has diverged is not measured. Its next step or its evaluation says so.
        """
        if not self.requests or not has_room(self.trial.spec, step):
            return
        run, roles = self.trial.run, self.trial.roles
        self.trial.start(step, "teacher")
        begun = time.monotonic()
        refresh(roles, step)
        try:
            rollouts, digest = roles.call_for_two(
                "rollout", RolloutWorker.sample, self.requests, Student()
            )
            digest.get()
            scores, _ = roles.call_for_two("teacher", TeacherWorker.score, rollouts)
            row = roles.call("learner", LearnerWorker.held_out, rollouts, scores, step).get()
        except NotFinite as error:
            run.log.line(f"step {step}: not measured on held-out prompts: {error}")
            return
        run.append(HELD_OUT, [vars(row)])
        timing = {"step": step, "phase": MEASURE, "seconds": round(time.monotonic() - begun, 4)}
        timing |= {"responses": len(self.requests), "tokens": sum(row.tokens)}
        run.append_timing(timing | self.trial.places["rollout"])


def has_room(spec: WorkerSpec, step: int) -> bool:
    """Whether the teacher may score beside what samples after `step` steps.

    A serving engine that blends holds a teacher of its own. Where it shares a GPU with the scoring
    one, its budget (`engines.budget`) has no room for both until the trial samples from the student.
    """
    unit = spec.unit
    if not is_pooled(spec.setup) or not unit.placement.takes_turns:
        return True
    return not behavior_at(unit.method, unit.knobs, min(step, unit.steps - 1)).needs_teacher


# --- the loop of one unit, from the state of its run directory to the end of its training ---


def run_unit(spec: WorkerSpec, run: RunWriter, roles: Roles) -> Iterator[int]:
    """Train the missing steps; yields each step after a commit: a checkpoint or a saved state."""
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
        # Host and process of the roles that are up.
        self.places: dict[RoleName, dict[str, Any]] = {}

    @functools.cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The setup's one tokenizer."""
        return open_tokenizer(self.spec.teacher)

    @functools.cached_property
    def grader(self) -> Grader:
        """The grader of this process."""
        return shared_grader(self.spec.runtime.grader_deadline_s)

    def train(self) -> Iterator[int]:
        """Train steps `run.next_step` … `unit.steps` − 1; yields each step after a commit."""
        if self.run.next_step >= self.unit.steps:
            return
        saved = self.run.verified_state() if self.run.next_step else None
        self.run.log.line(f"training from step {self.run.next_step} of {self.unit.steps}")
        data, held_out = self.read()
        self.open(saved)
        if not self.run.next_step:
            held_out.measure(0)
        checkpoints = checkpoint_steps(self.unit, self.setup)
        watch = watch_gpu()
        training_step = TrainingStep(self, data, watch)
        committed = time.monotonic()
        try:
            for k in range(self.run.next_step, self.unit.steps):
                self.run.log.enter(TRAINING)
                training_step.take(k)
                if k + 1 in checkpoints:
                    held_out.measure(k + 1)
                    self.run.new_checkpoint(k + 1, self.save)
                    what = "checkpoint"
                elif time.monotonic() - committed >= self.spec.runtime.save_every_s:
                    self.run.new_save(k + 1, self.save_state)
                    what = "saved the state"
                else:
                    continue
                self.run.commit(k + 1)
                self.run.log.line(f"{what} of step {k + 1} of {self.unit.steps}")
                committed = time.monotonic()
                yield k + 1
        finally:
            if watch is not None:
                watch.close()

    def read(self) -> tuple[TrainingSet, HeldOutPrompts]:
        """The unit's prompts, and those on which it measures itself."""
        self.run.log.enter(READING)
        batches = self.unit.first_batch + self.unit.steps
        measured = held_out_prompts(self.setup) if self.unit.is_trial else 0
        data = load_training_set(
            self.setup, self.spec.data_dir, self.tokenizer, batches, measured, self.unit.seed
        )
        self.run.describe_data(data.counts())
        if len(data.held_out) < measured:
            self.run.log.line(
                f"the data leave {len(data.held_out)} of {measured} held-out prompts "
                "(evaluation.held_out)"
            )
        return data, HeldOutPrompts(self, data.held_out)

    def open(self, saved: Path | None) -> None:
        """Start the roles of the next step, the learner from a `saved` state if there is one."""
        self.run.log.enter(OPENING)
        self.start(self.run.next_step, "learner")
        if self.unit.is_supervised:
            self.start(self.run.next_step, "teacher")
        else:
            # The teacher starts with the first step that it scores: blended steps bring their scores.
            self.start(self.run.next_step, "rollout")
        if saved is not None:
            with heartbeat.loading():
                self.roles.call("learner", LearnerWorker.restore, str(saved)).get()

    def start(self, step: int, role: RoleName) -> None:
        """Start a role that is not up yet, before step `step` and outside of its time."""
        if role in self.places:
            return
        begun = time.monotonic()
        with heartbeat.loading():
            place = start(self.roles, role, step)
        seconds = round(time.monotonic() - begun, 3)
        row = {"step": step, "phase": START, "role": role, "seconds": seconds}
        self.run.append_timing(row | place)
        if place["process"] != os.getpid():  # the attempt's first line names this process
            self.run.log.line(f"{role}: {described(place)}")
        self.places[role] = place

    def save(self, folder: Path) -> None:
        """Save a complete model folder: weights, configuration, tokenizer, the learner's state."""
        self.roles.call("learner", LearnerWorker.save, str(folder)).get()
        self.tokenizer.save_pretrained(folder)
        complete_settings(folder, self.setup.student.stop_ids)

    def save_state(self, folder: Path) -> None:
        """Save what training needs to go on, and nothing that is evaluated."""
        self.roles.call("learner", LearnerWorker.save_state, str(folder)).get()
