"""The memory of a trial: the budgets of its roles, and the paper's formulas for generation.

GiB on one GPU, for n sequences of full length (longest prompt + longest response):

    generation, student alone   W_S + n·KV_S
    generation, blending        W_S + W_Q + n·(KV_S + KV_Q)

Both stand in the paper's appendix "Efficiency Analysis".
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config import Placement, Runtime, Setup
from orchestrator.engines.budget import Budget, Situation, TooSmall, budget, is_pooled
from orchestrator.engines.memory import GIB, Gpus, decoder, kv_gib, learner_gib, sequences_per_step


@dataclass(frozen=True)
class Memory:
    """GiB on each GPU of a trial (its other units need less); `sequences_…` are counts.

    Where roles have GPUs of their own, each part is what the GPUs of its role hold of it.
    `workspace` is neither weights nor cache while the student samples alone. `scoring` and
    `learning` are the least that these take; `learning_tokens` is the micro-batch of learning, 0
    where it does not fit. Where the learner stays, `learning` counts the sampler's cache, too.
    """

    student_weights: float
    teacher_weights: float
    learner_state: float
    workspace: float
    kv_student: float  # per sequence of full length
    kv_teacher: float
    sequences_decoded_vanilla: int  # n of training: decoded at once, or all of a step if fewer
    sequences_decoded_blending: int
    sequences_decoded_evaluation: int  # at the evaluation's length
    generation_vanilla: float
    generation_blending: float
    scoring: float
    learning: float
    learning_tokens: int
    peak_vanilla: float
    peak_blending: float
    sequences_at_once_vanilla: int  # on GPUs of this size; 0: does not fit
    sequences_at_once_blending: int
    learning_recomputes: bool  # layers, in the backward pass
    learner_stays: bool  # on the GPU while the student samples alone


def memory(
    setup: Setup, runtime: Runtime, gpu_gib: float, placement: Placement | None = None
) -> Memory:
    """Memory of a trial, and of an evaluator, which holds the student alone.

    Without a `placement` all roles share one GPU.
    """
    placement = placement or Placement(gpus=1)
    sampling, scorer = Gpus.of(placement, "rollout"), Gpus.of(placement, "teacher")
    learner = Gpus.of(placement, "learner")

    def granted(situation: Situation, on: Gpus) -> tuple[Budget | None, float]:
        """The budget, and GiB that are needed at least."""
        try:
            fitting = budget(setup, runtime, gpu_gib, situation, on)
        except TooSmall as error:
            return None, error.needed_gib
        return fitting, fitting.total_gib

    alone, peak_alone = granted("decoding", sampling)
    both, peak_both = granted("blending", sampling)
    learns, learning = granted("learning", learner)
    _, scoring = granted("scoring", scorer)
    evaluating, _ = granted("evaluating", Gpus())
    student = decoder(setup.student, setup).weight_bytes / GIB
    teacher = decoder(setup.teacher, setup).weight_bytes / GIB
    resident = (student if sampling.apart else student + teacher) / sampling.count
    kv_alone = kv_gib(setup, False) / sampling.count
    kv_both = kv_gib(setup, True) / sampling.count
    others, wanted = max(scoring, learning), runtime.rollout_batch
    fits_alone = _sequences(alone, setup) if others <= gpu_gib else 0
    fits_both = _sequences(both, setup) if others <= gpu_gib else 0
    most = sequences_per_step(setup.training)
    decoded_alone = min(most, fits_alone if wanted is None else wanted)
    decoded_both = min(most, fits_both if wanted is None else wanted)
    evaluated = setup.training.max_prompt_tokens + setup.evaluation.max_response_tokens
    return Memory(
        student_weights=student / sampling.count,
        teacher_weights=teacher / scorer.count,
        learner_state=learner_gib(setup) / learner.count,
        workspace=peak_alone - resident - _of_others(alone, kv_alone),
        kv_student=kv_alone,
        kv_teacher=kv_both - kv_alone,
        sequences_decoded_vanilla=decoded_alone,
        sequences_decoded_blending=decoded_both,
        sequences_decoded_evaluation=wanted or _sequences(evaluating, setup, evaluated),
        generation_vanilla=student / sampling.count + decoded_alone * kv_alone,
        generation_blending=(student + teacher) / sampling.count + decoded_both * kv_both,
        scoring=scoring,
        learning=learning,
        learning_tokens=learns.tokens if learns else 0,
        peak_vanilla=max(others, peak_alone),
        peak_blending=max(others, peak_both),
        sequences_at_once_vanilla=fits_alone,
        sequences_at_once_blending=fits_both,
        learning_recomputes=learns is not None and learns.checkpointing,
        learner_stays=alone is not None and alone.resident,
    )


def _of_others(granted: Budget | None, kv_alone: float) -> float:
    """GiB of the cache, at least of one sequence, and of a learner that stays beside it."""
    if granted is None:
        return kv_alone
    return granted.parts["KV cache"] + granted.parts.get("trainer", 0.0)


def _sequences(granted: Budget | None, setup: Setup, length: int | None = None) -> int:
    """Sequences of full length that a budget has room for."""
    if granted is None:
        return 0
    if not is_pooled(setup):
        return granted.requests
    length = length or setup.training.max_prompt_tokens + setup.training.max_response_tokens
    return min(granted.requests, granted.kv_tokens // length)
