"""Every column of `metrics.jsonl` and every clocked phase: meaning, steps that log it, and names.

A training step writes one row of `metrics.jsonl`: its `step`, counted from 0, and a value under the
key of each column below. Values are in the column's unit; a share lies in [0, 1] and is shown in
per cent. A value over nothing, such as the mean reward of prompts without a known answer, is null
and never zero; a column that a step does not have is left out of its row. `timing.jsonl` has a row
for each thing that a unit was clocked at, and `phase.json` names the one thing that it does now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

# --- the columns of metrics.jsonl ---


class Steps(Enum):
    """Which training steps log a column."""

    ALL = "every step, also one of the supervised stage"
    SCORED = "steps that a teacher scores: not the supervised stage, nor a loss without a teacher"
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
    # What the law of the trust region measures at each prefix: `policy/laws.py`.
    "beta": Column(
        "Blending weight β* of the trust region, mean over tokens.", "", Steps.MEASURED,
        panel="share of the teacher β*", figure=r"mean $\beta^*$", heading="β*", decimals=3,
    ),
    "teacher_feasible": Column(
        "Prefixes at which the teacher itself lies in the trust region.", "share", Steps.MEASURED,
        panel="prefixes where the teacher itself is in the ball",
        figure="teacher inside (%)", heading="Teacher inside (%)", decimals=1,
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
        panel="KL(μ‖p) of a sequence, nats",
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
    # (`engines/common/rollout_loss.py`).
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


def columns_of_step(
    needs_teacher: bool, measures: Collection[str], scored: bool = True
) -> set[str]:
    """Keys that a step of distillation logs, by its `policy.spec.Behavior` and its scores."""
    logged = {Steps.ALL}
    keys: set[str] = set()
    if scored:
        logged.add(Steps.SCORED)
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
# On a GPU a TRAIN row has two more keys, each with GiB by part: the peak of the memory that all
# processes of the GPU used together, and what `engines.budget` grants them.
PEAK_GIB, BUDGET_GIB = "peak_gib", "budget_gib"
# The present work of a unit, in phase.json and `trb status`. The first three come before its first
# step. The last two are the work of evaluators, which `trb status` derives from their claims.
LOADING, READING, OPENING = "loading PyTorch", "reading data", "starting models"
TRAINING, EVALUATING, RESCORING = "training", "evaluating", "rescoring"
