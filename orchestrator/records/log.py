"""A unit's notes for people: `log.txt`, and its present work in `phase.json`.

No result depends on them, and recovery does not reproduce them. From `phase.json` the next attempt
within a sweep learns its number, and how many attempts before it ran out of memory. A note that
cannot be written, as on a full disk, is left out: the rows and checkpoints that matter fail on the
same disk, with a message.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.records.files import write_atomically

LOG, PHASE = "log.txt", "phase.json"


@dataclass(frozen=True)
class Phase:
    """The present work of the process that trains a unit.

    `name` is LOADING, READING, OPENING or TRAINING of `records.log`; empty at the very start.
    `attempt` counts from 1 within one call of `trb submit`, which `sweep` names and which makes at
    most `attempts`; `out_of_memory` of them ran out of memory.
    """

    name: str = ""
    attempt: int = 1
    attempts: int = 1
    sweep: str = ""
    out_of_memory: int = 0


class RunLog:
    """Writes the notes of one unit; `folder` is its run directory."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._phase = Phase()

    @property
    def path(self) -> Path:
        """The file of the log."""
        return self._folder / LOG

    def begin(self, sweep: str, attempts: int) -> int:
        """Start an attempt of at most `attempts` within `sweep`; returns its number, from 1."""
        before = read_phase(self._folder)
        self._phase = Phase(attempt=1, attempts=attempts, sweep=sweep)
        if before is not None and before.sweep == sweep:
            attempt, out_of_memory = before.attempt + 1, before.out_of_memory
            self._phase = replace(self._phase, attempt=attempt, out_of_memory=out_of_memory)
        _write(self._folder, self._phase)
        return self._phase.attempt

    def give_back(self) -> None:
        """Note that the sweep stopped the attempt, which then counts as none."""
        self._phase = replace(self._phase, attempt=self._phase.attempt - 1)
        _write(self._folder, self._phase)

    def line(self, text: str) -> None:
        """Add `text` to the log, after the clock time."""
        with contextlib.suppress(OSError), self.path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def enter(self, name: str) -> None:
        """Note the work that begins now; noting the same again writes nothing."""
        phase = replace(self._phase, name=name)
        if phase != self._phase:
            self._phase = phase
            _write(self._folder, phase)

    def note_out_of_memory(self) -> None:
        """Note that the attempt ran out of memory."""
        self._phase = replace(self._phase, out_of_memory=self._phase.out_of_memory + 1)
        _write(self._folder, self._phase)

    @property
    def out_of_memory(self) -> int:
        """How many attempts of the sweep ran out of memory."""
        return self._phase.out_of_memory


class LogHandler(logging.Handler):
    """Sends the warnings of Python's logging to a unit's log."""

    def __init__(self, log: RunLog):
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.line(f"{record.levelname.lower()}: {record.name}: {record.getMessage()}")


def read_log(folder: Path) -> str | None:
    """The log of the unit in `folder`; None if it has not started."""
    try:
        return (folder / LOG).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def read_phase(folder: Path) -> Phase | None:
    """Read the last note of the unit in `folder`; None without one that can be read."""
    try:
        raw: Any = json.loads((folder / PHASE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or set(raw) != {field.name for field in fields(Phase)}:
        return None
    kinds = {"name": str, "sweep": str}  # the others are numbers
    if not all(isinstance(value, kinds.get(name, int)) for name, value in raw.items()):
        return None
    return Phase(**raw)


def _write(folder: Path, phase: Phase) -> None:
    """Replace the note; a reader sees the old one or the new one."""
    with contextlib.suppress(OSError):
        write_atomically(folder / PHASE, json.dumps(asdict(phase)), durable=False)


# --- every column of `metrics.jsonl` and every clocked phase: meaning, steps that log it, and names ---
#
# A training step writes one row of `metrics.jsonl`: its `step`, counted from 0, and a value under the
# key of each column below. Values are in the column's unit; a share lies in [0, 1] and is shown in
# per cent. A value over nothing, such as the mean reward of prompts without a known answer, is null
# and never zero; a column that a step does not have is left out of its row. `timing.jsonl` has a row
# for each thing that a unit was clocked at, and `phase.json` names the one thing that it does now.


# --- the columns of metrics.jsonl ---


class Steps(Enum):
    """Which training steps log a column."""

    ALL = "every step, also one of the supervised stage"
    SCORED = "steps that a teacher scores: all but those of the supervised stage"
    BLENDED = "steps whose behavior asks the teacher while decoding"
    MEASURED = "steps whose behavior's law measures it: the key is in `Behavior.measures`"


@dataclass(frozen=True)
class Column:
    """One column: `meaning` and `unit` as logged, the steps that log it, and its names for people.

    `panel` is its title in W&B; columns with one title share a panel. `figure` is its title among
    the diagnostics' small multiples (mathtext), `heading` that in the report's tables, which show
    `decimals`. A column without such a name is not shown there.
    """

    meaning: str
    unit: str
    logged: Steps
    panel: str = ""
    figure: str = ""
    heading: str = ""
    decimals: int = 0

    @property
    def factor(self) -> int:
        """From the logged value to what figures and the report show: shares become per cent."""
        return 100 if self.unit == "share" else 1


COLUMNS: Mapping[str, Column] = {
    # What the laws of KL budgets measure at each prefix: `policy/laws.py`.
    "beta": Column(
        "Blending weight β* that spends a KL budget, of a prefix or of the whole batch, mean over tokens.", "",
        Steps.MEASURED,
        panel="share of the teacher β*", figure=r"mean $\beta^*$", heading="β*", decimals=3,
    ),
    "teacher_feasible": Column(
        "Prefixes at which the teacher itself lies in the trust region.", "share", Steps.MEASURED,
        panel="prefixes where the teacher itself is in the ball",
        figure="teacher inside (%)", heading="Teacher inside (%)", decimals=1,
    ),
    "kl_slope": Column(
        "dKL(μ‖p)/dβ at a prefix, mean over tokens: gives the next batch its β.", "nats", Steps.MEASURED,
    ),
    # How far a blended rollout is from the student, and how many of its drafts survived:
    # `engines/common/rounds.py`, `workers/digests.py`.
    "behavior_kl": Column(
        "KL(μ‖p) at a prefix, mean over tokens.", "nats", Steps.BLENDED,
        panel="KL(μ‖p) at a prefix, nats",
        figure=r"KL($\mu\,\Vert\,p$) (nats/token)", heading="KL (nats)", decimals=4,
    ),
    "sequence_kl": Column(
        "KL(μ‖p) summed over a response, mean over responses.", "nats", Steps.BLENDED,
        panel="KL(μ‖p) of a sequence, nats", figure="response KL (nats)",
    ),
    "acceptance": Column(
        "Probability that a draft of the student survives, mean over tokens.", "share", Steps.BLENDED,
        panel="probability that a draft survives",
        figure="acceptance (%)", heading="Acceptance (%)", decimals=1,
    ),
    "rounds_per_token": Column(
        "Teacher passes ÷ tokens of a response, mean over responses.", "", Steps.BLENDED,
        panel="teacher passes for a token", figure="passes per token", heading="Passes per token", decimals=3,
    ),
    "teacher_positions": Column(
        "Drafts that teacher passes judged.", "tokens", Steps.BLENDED,
        panel="positions the teacher judged in a step",
    ),
    "accepted_drafts": Column("Judged drafts that survived.", "tokens", Steps.BLENDED),
    "draft_acceptance": Column(
        "Accepted ÷ judged drafts; below `acceptance`, since what follows a rejected draft is lost with it.", "share",
        Steps.BLENDED, panel="accepted drafts, and their length",
    ),
    "draft_length": Column(
        "Drafts of a round γ, as they came out.", "tokens", Steps.BLENDED, panel="accepted drafts, and their length",
    ),
    # The law of teacher injection, again `policy/laws.py`.
    "replaced": Column(
        "Probability that SKD replaces the student's token, mean over tokens.", "share", Steps.MEASURED,
        panel="replaced tokens", figure="tokens replaced (%)", heading="Replaced (%)", decimals=2,
    ),
    # How student and teacher see the rollouts: `workers/digests.py`; the AUROC, which needs
    # rewards: `trial/diagnostics.py`; M and Q, over the student's top-k support:
    # `engines/torch/trainer.py`.
    "support_mass_student": Column(
        "Probability M of the student on the support, mean over tokens.", "share", Steps.SCORED,
        panel="mass of the support, student M and teacher Q",
        figure="student mass $M$ (%)", heading="M (%)", decimals=2,
    ),
    "support_mass_teacher": Column(
        "Probability Q of the teacher on the support, mean over tokens.", "share", Steps.SCORED,
        panel="mass of the support, student M and teacher Q",
        figure="teacher mass $Q$ (%)", heading="Q (%)", decimals=2,
    ),
    "support_overlap": Column(
        "Part of the support that is in the teacher's own top k, mean over tokens.", "share", Steps.SCORED,
        panel="overlap of both supports", figure="support overlap (%)", heading="Overlap (%)", decimals=1,
    ),
    "support_auroc": Column(
        "Probability that a correct response has a higher mean log q − log p than an incorrect one.", "",
        Steps.SCORED, panel="AUROC of log q − log p for the reward",
    ),
    "teacher_entropy": Column(
        "Entropy of the teacher at the visited prefixes, mean over tokens.", "nats", Steps.SCORED,
        panel="entropy of the teacher at visited prefixes, nats",
    ),
    "teacher_log_prob": Column(
        "log q of the sampled token, mean over tokens.", "nats", Steps.SCORED,
        panel="log-probability of sampled tokens",
    ),
    "student_log_prob": Column(
        "log-probability of the sampled token under the model that sampled: log p, and in the supervised stage log q.",
        "nats", Steps.ALL, panel="log-probability of sampled tokens",
    ),
    # The responses themselves: `workers/digests.py`, their reward `trial/diagnostics.py`.
    "response_tokens": Column(
        "Tokens of all responses of the step.", "tokens", Steps.ALL, panel="response tokens of a step",
    ),
    "response_length": Column(
        "Tokens of a response, mean over responses.", "tokens", Steps.ALL,
        panel="response length", figure="length (tokens)", heading="Length (tokens)", decimals=1,
    ),
    "truncated": Column(
        "Responses that reached the limit of tokens.", "share", Steps.ALL,
        panel="truncated responses", figure="truncated (%)", heading="Truncated (%)", decimals=1,
    ),
    "reward": Column(
        "Correct responses, of those whose prompt has a known answer.", "share", Steps.ALL,
        panel="reward of training rollouts", figure="correct (%)", heading="Correct (%)", decimals=1,
    ),
    # Rounding: the learner's log p of sampled tokens beside the sampler's, in the same weights
    # (`engines/common/learning.py`).
    "sampler_gap": Column(
        "|Δ| of a sampled token's log p between learner and sampler, mean over tokens.", "nats", Steps.SCORED,
        panel="gap of learner and sampler, nats", heading="Gap (nats)", decimals=4,
    ),
    "sampler_gap_p99": Column(
        "The same |Δ|, 99th percentile of the tokens that were read.", "nats", Steps.SCORED,
        panel="gap of learner and sampler, nats",
    ),
    "sampler_kl": Column(
        "KL of the sampler's student from the learner's, estimated on sampled tokens: mean of p/μ · (exp Δ − 1 − Δ).",
        "nats", Steps.SCORED, panel="KL of sampler and learner, nats", heading="Gap (KL)", decimals=5,
    ),
    # The update: `engines/torch/trainer.py`.
    "loss": Column("Objective, mean over tokens.", "nats", Steps.ALL, panel="loss"),
    "grad_norm": Column("Norm of the gradient before it is clipped.", "", Steps.ALL, panel="norm of the gradient"),
    "lr": Column("Learning rate of the update.", "", Steps.ALL, panel="learning rate"),
}  # fmt: skip


def columns_of_step(needs_teacher: bool, measures: Collection[str]) -> set[str]:
    """Keys that a step of distillation logs, by its `policy.spec.Behavior`."""
    logged = {Steps.ALL, Steps.SCORED}
    keys: set[str] = set()
    if needs_teacher:
        logged.add(Steps.BLENDED)
        keys |= set(measures)
    for key, column in COLUMNS.items():
        if column.logged in logged:
            keys.add(key)
    return keys


# --- the phases of timing.jsonl and phase.json ---

# `phase` of a row of timing.jsonl. START: a role came up with its models, or an evaluator loaded a
# checkpoint; TRAIN: one training step; EVALUATE: a slice of the responses to one benchmark from one
# checkpoint. A row is written when its work is done. `at` is that time; `host`, `process` and `gpu`
# did the work.
START, TRAIN, EVALUATE = "start", "train", "evaluate"
MEASURE = "held_out"  # sampling and scoring of the held-out prompts at a checkpoint, in `seconds`
EVALUATOR = "evaluator"  # `role` of a START row whose process belongs to no attempt at the unit
# The parts of a training step: keys of a TRAIN row, in seconds. SCORE is next to nothing after a
# blended rollout, which the teacher scored while decoding, and no key of a step that the teacher does
# not score. REWARD is the time of grading that scoring and learning beside it do not hide.
ROLLOUT, SCORE, REWARD, LEARN = "rollout", "score", "reward", "learn"
STEP_PARTS: Mapping[str, str] = {  # with the titles of their panels in W&B
    ROLLOUT: "seconds of a rollout",
    SCORE: "seconds of the teacher's scoring",
    REWARD: "seconds of waiting for the grader",
    LEARN: "seconds of an update",
}
# A TRAIN row of a step that solves the β of its batch says how often the batch was sampled for it.
PASSES = "passes"
# On a GPU a TRAIN row has two more keys, each with GiB by part: the peak of the memory that all
# processes of the GPU used together, and what `engines.budget` grants them.
PEAK_GIB, BUDGET_GIB = "peak_gib", "budget_gib"
# The present work of a unit, in phase.json and `trb status`. The first three come before its first
# step. The last two are the work of evaluators, which `trb status` derives from their claims.
LOADING, READING, OPENING = "loading PyTorch", "reading data", "starting models"
TRAINING, EVALUATING, RESCORING = "training", "evaluating", "rescoring"


# --- rows of held_out.jsonl: the distance of student and teacher on prompts that no trial takes ---
#
# A trial writes one at its start and one at each checkpoint: `step` counts the updates before it. The
# student samples one response to each prompt, with the same uniforms at every step of every trial of
# a setup, and both models read its prefixes. Logarithms are natural; the student's support is its
# top-k ids at a prefix, as in the objective.

HELD_OUT = "held_out.jsonl"
FIRST_BUCKET, BUCKET_FACTOR = 8, 4  # positions 1–8, 9–32, 33–128, 129–512, …


@dataclass(frozen=True)
class HeldOut:
    """A row of held_out.jsonl: means over response tokens in nats, and shares in [0, 1].

    `kl` is KL(p‖q) with all ids outside of the support as one outcome: Σ_S p·log(p/q) + (1 − P)·
    log((1 − P)/(1 − Q)) with P = Σ_S p and Q = Σ_S q. It is at most the KL of the whole vocabulary,
    and equal where the support is all of it. `kl_error` is its standard error over prompts, that of
    a ratio estimator (Cochran 1977, "Sampling Techniques", eq. 6.13), None for a single prompt.
    `sequence_kl` is the mean over responses of their summed KL, which estimates the KL of whole
    responses. `tail_student` is 1 − P and `tail_teacher` 1 − Q; the entropies are those of the
    whole vocabulary.

    `prompts` are numbers in the training order, and `tokens` and `prompt_kl` the length and the
    summed KL of the response to each. `positions` has a mapping for each bucket of positions that
    a response reached: `first` and `last` from 1, `tokens`, `kl` and both tails.
    """

    step: int
    kl: float | None
    kl_error: float | None
    sequence_kl: float | None
    tail_student: float | None
    tail_teacher: float | None
    student_entropy: float | None
    teacher_entropy: float | None
    response_length: float
    truncated: float
    prompts: list[int]
    tokens: list[int]
    prompt_kl: list[float | None]
    positions: list[dict[str, Any]]


# --- training rollouts token by token, in a file for some of the steps ---
#
# `samples/step_000019.jsonl.gz` holds the first `runtime.rollout_texts` rollouts of training step 19,
# a row each. Units write such a file at their first step and at the last step before each checkpoint.
# `state.json` vouches for it as for other documents.


FOLDER = "samples"


@dataclass(frozen=True)
class RolloutSample:
    """One rollout; each list has one value per token, and logarithms are in nats.

    `ids` are the response, from which it can be replayed: several ids can have one text.
    `prompt` is the text that the model read, and `index` the number of that prompt in the training
    data. `tokens` are texts that together make the response with its end. The text of a letter that
    spans several tokens is at its last token. `student` is log p and `behavior` log μ of the
    emitted token.

    If decoding used the teacher, `survived` says whether the token is the student's draft and not a
    replacement, and `teacher` is log q; both are None otherwise. `measured` has the measurements of
    the behavior's law by column of `metrics.jsonl`: β of the trust region, the probability
    `acceptance` that a draft survives, KL(μ‖p), `replaced` of SKD.
    """

    index: int
    sample: int
    prompt: str
    gold: str | None
    reward: float | None
    truncated: bool
    ids: list[int]
    tokens: list[str]
    student: list[float]
    behavior: list[float]
    teacher: list[float] | None = None
    survived: list[bool] | None = None
    measured: dict[str, list[float]] = field(default_factory=dict)


def samples_name(step: int) -> str:
    """The file of a step below the run directory: `samples/step_000019.jsonl.gz`."""
    return f"{FOLDER}/step_{step:06d}.jsonl.gz"


# --- statistics that training logs of a step, and analysis takes again over the rows of several steps ---


Floats = NDArray[np.float64]


def auroc(
    values: Floats | Sequence[float], rewards: Floats | Sequence[float | None]
) -> float | None:
    """Probability that a correct rollout (reward 1) has a higher value than an incorrect one (0).

    Ties count half, rollouts without a reward not at all. None unless some rollouts are correct and
    some incorrect.
    """
    values = np.asarray(values, dtype=float)
    rewards = np.asarray(rewards, dtype=float)  # None becomes nan
    correct = values[rewards == 1.0]
    wrong = values[rewards == 0.0]
    if not len(correct) or not len(wrong):
        return None
    # `below` counts the incorrect values below a correct one, and `up_to` also those equal to it.
    # Their sum thus counts a lower value twice and a tie once, and is halved at the end. The counts
    # are whole numbers, so the order of the rollouts never changes the result.
    ranked = np.sort(wrong)
    below = np.searchsorted(ranked, correct, side="left")
    up_to = np.searchsorted(ranked, correct, side="right")
    return int((below + up_to).sum()) / (2 * len(correct) * len(wrong))
