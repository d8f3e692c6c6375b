"""What a trial holds on its GPUs, and how many sequences can be decoded at once. Pure arithmetic on a setup.

GiB (2³⁰ bytes) on one GPU, for n sequences of full length (longest prompt + longest response):

    generation, student alone   W_S + n·KV_S                     (paper, Appendix "Efficiency Analysis")
    generation, blending        W_S + W_Q + n·(KV_S + KV_Q)      (same)
    resident                    W_S + W_Q + workspace: what stays while sequences are decoded, since the teacher either
                                decodes too or scores them next; an evaluator: W_S + workspace
    learning                    resident + learner state, which lies in the host's memory while others work
    peak                        the larger of learning and resident + the KV caches of generation
    sequences at once           ⌊(GPU − resident) ÷ KV of a sequence⌋; none where learning does not fit

Roles that share a GPU take turns: caches are given back before the teacher scores and the learner comes, and the
teacher is there once, with the engine that blends or with the one that scores. Activations of scoring and learning
(`runtime.micro_batch_tokens`) are not in it: they come when KV caches are gone.

Roles that take turns on G GPUs share everything out: each GPU has 1/G of all weights, of the learner's state and of
each KV cache, and a workspace of its own. Roles with GPUs of their own (`apart`: R that sample, T of the teacher, L of
the learner) hold only what they need themselves:

    sampling    resident: W_S ÷ R + workspace, while blending (W_S + W_Q) ÷ R + workspace; KV caches ÷ R
    scoring     W_Q ÷ T + workspace
    learning    learner state ÷ L + workspace
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from orchestrator.config import Model, Placement, RoleName, Runtime, Setup, Shape, Training
from orchestrator.errors import UserError

GIB = 2**30
BYTES = {"bfloat16": 2, "float32": 4}  # of a value in `engine.dtype`
MASTER_BYTES = 4 + 8 + 4  # of a parameter in training, float32: weight, two AdamW moments, gradient
WORKSPACE_GIB = 6.0  # CUDA, a layer's cache copy, vocabulary rows
CPU_PARAMETERS = 500e6  # of student and teacher together; the embedded pairs have less than one million
CPU_CACHE_GIB = 1.0
CPU_BATCH = 512  # sequences at once without a GPU, where the embedded models' caches are small


@dataclass(frozen=True)
class Decoder:
    """A Qwen3 model as memory and arithmetic."""

    layers: int
    parameters: int
    value_bytes: int
    kv_bytes: int  # per token, keys and values of all layers
    head_groups: int  # query heads that share one key–value head

    @property
    def weight_bytes(self) -> int:
        return self.parameters * self.value_bytes


@dataclass(frozen=True)
class Gpus:
    """The GPUs of one role: how many, and whether it has them for itself (`apart`), else all roles take turns there."""

    count: int = 1
    apart: bool = False

    @staticmethod
    def of(placement: Placement, role: RoleName) -> Gpus:
        """Those that a placement gives to a role; a share of a GPU is a smaller one."""
        return Gpus(max(1, int(placement.gpus_of(role))), placement.role_gpus is not None)


ONE_GPU = Gpus()


@dataclass(frozen=True)
class Memory:
    """GiB on each GPU of a trial (its other units need less); `sequences_…` are counts. See the module's formulas.

    Where roles have GPUs of their own, each part is what the GPUs of its role hold of it.
    """

    student_weights: float
    teacher_weights: float
    learner_state: float
    workspace: float
    kv_student: float  # per sequence of full length
    kv_teacher: float
    sequences_decoded_vanilla: int  # n of training: what is decoded at once, or all of a step if fewer
    sequences_decoded_blending: int
    sequences_decoded_evaluation: int  # at the evaluation's length
    generation_vanilla: float
    generation_blending: float
    scoring: float
    learning: float
    peak_vanilla: float
    peak_blending: float
    sequences_at_once_vanilla: int  # on GPUs of this size; 0: does not fit
    sequences_at_once_blending: int


def parameters(shape: Shape, vocabulary_size: int) -> int:
    """Parameters of a Qwen3 decoder; tied embeddings are counted once."""
    embeddings = vocabulary_size * shape.hidden * (1 if shape.tied else 2)
    attention = shape.hidden * shape.head_dim * 2 * (shape.heads + shape.kv_heads)  # q, o and k, v; no biases
    norms = 2 * shape.hidden + 2 * shape.head_dim  # before attention and MLP; of queries and keys
    mlp = 3 * shape.hidden * shape.ffn
    return embeddings + shape.layers * (attention + norms + mlp) + shape.hidden


def needs_gpu(setup: Setup) -> bool:
    """Whether the pair is too large to be trained on CPUs in a time that anybody would wait."""
    size = setup.vocabulary.size
    return sum(parameters(model.shape, size) for model in (setup.student, setup.teacher)) > CPU_PARAMETERS


def decoder(model: Model, setup: Setup) -> Decoder:
    """`model` in the setup's vocabulary and dtype."""
    shape, value_bytes = model.shape, BYTES[setup.engine.dtype]
    return Decoder(
        layers=shape.layers,
        parameters=parameters(shape, setup.vocabulary.size),
        value_bytes=value_bytes,
        kv_bytes=2 * shape.layers * shape.kv_heads * shape.head_dim * value_bytes,
        head_groups=shape.heads // shape.kv_heads,
    )


def sequences_per_step(training: Training) -> int:
    """Rollouts of one optimizer step."""
    return training.prompts_per_step * training.samples_per_prompt


def decode_batch(
    setup: Setup,
    runtime: Runtime,
    gpu_gib: float | None,
    blending: bool,
    max_tokens: int | None = None,
    trains: bool = True,
    on: Gpus = ONE_GPU,
) -> int:
    """How many sequences are decoded at once: the configured number, else what surely fits.

    `gpu_gib` is that of each GPU, None on CPUs. `blending`: the teacher decodes too. `max_tokens` limits responses
    (training's limit when None). Not `trains`: a base evaluation, which holds neither teacher nor learner.
    Raises UserError if not even one sequence fits.
    """
    if runtime.rollout_batch is not None:
        return runtime.rollout_batch
    if gpu_gib is None:
        return CPU_BATCH
    fitting = sequences_that_fit(setup, gpu_gib, blending, max_tokens, trains, on)
    if fitting == 0:
        raise too_small(setup, gpu_gib, blending, max_tokens, trains, on)
    return fitting


def sequences_that_fit(
    setup: Setup,
    gpu_gib: float,
    blending: bool,
    max_tokens: int | None = None,
    trains: bool = True,
    on: Gpus = ONE_GPU,
) -> int:
    """Sequences of full length whose KV caches fit beside what is resident; arguments as for `decode_batch`."""
    if trains and not on.apart and learning_gib(setup, on) > gpu_gib:
        return 0
    free = max(0.0, gpu_gib - resident_gib(setup, trains, on, blending))
    return math.floor(free / (kv_gib(setup, blending, max_tokens) / on.count))


def resident_gib(setup: Setup, trains: bool = True, on: Gpus = ONE_GPU, blending: bool = False) -> float:
    """GiB that stay on each GPU while sequences are decoded; see the module's formulas."""
    student, teacher = (decoder(model, setup).weight_bytes / GIB for model in (setup.student, setup.teacher))
    beside = blending if on.apart else trains  # the teacher
    return (student + (teacher if beside else 0.0)) / on.count + WORKSPACE_GIB


def scoring_gib(setup: Setup, on: Gpus = ONE_GPU) -> float:
    """GiB on each GPU while the teacher scores, without activations; see the module's formulas."""
    if not on.apart:
        return resident_gib(setup, on=on)
    return decoder(setup.teacher, setup).weight_bytes / GIB / on.count + WORKSPACE_GIB


def learning_gib(setup: Setup, on: Gpus = ONE_GPU) -> float:
    """GiB on each GPU while the student learns, without activations; see the module's formulas."""
    others = WORKSPACE_GIB if on.apart else resident_gib(setup, on=on)
    return others + learner_gib(setup) / on.count


def check_roles(setup: Setup, gpu_gib: float, placement: Placement) -> None:
    """Raise UserError if the GPUs that teacher or learner have for themselves are too small for them."""
    if placement.role_gpus is None:
        return
    needs: dict[RoleName, Callable[[Setup, Gpus], float]] = {"teacher": scoring_gib, "learner": learning_gib}
    for role, needed in needs.items():
        on = Gpus.of(placement, role)
        gib = needed(setup, on)
        if gib > gpu_gib:
            raise UserError(
                f"GPU memory: {gpu_gib:.1f} GiB — at least {gib:.1f} GiB for the {role} on its "
                f"{on.count} GPU{'' if on.count == 1 else 's'} ({setup.title}): a larger "
                f"runtime.placement.role_gpus.{role}, larger GPUs, or a smaller pair"
            )


def static_gib(
    setup: Setup,
    gpu_gib: float,
    trains: bool = True,
    owner: Literal["student", "teacher"] = "student",
    on: Gpus = ONE_GPU,
) -> float:
    """GiB of each GPU that a serving engine takes: the weights of the model it samples, and all that is left for KV.

    Raises UserError if the cache does not hold one sequence of full length.
    """
    model = setup.student if owner == "student" else setup.teacher
    weights = decoder(model, setup).weight_bytes / GIB / on.count
    # A teacher that answers prompts is alone: nothing is scored in that stage, and no student sampled.
    resident = resident_gib(setup, trains, on) if owner == "student" else weights + WORKSPACE_GIB
    limit = max(setup.training.max_response_tokens, setup.evaluation.max_response_tokens)
    return weights + _cache_gib(setup, gpu_gib, resident, False, limit, trains, on)


def blending_gib(setup: Setup, gpu_gib: float, on: Gpus = ONE_GPU) -> tuple[float, int]:
    """As `static_gib`, for an engine of student and teacher; and the tokens that the caches of both hold.

    Raises UserError if the caches do not hold one sequence of full length.
    """
    student, teacher = decoder(setup.student, setup), decoder(setup.teacher, setup)
    resident = resident_gib(setup, on=on, blending=True)
    cache = _cache_gib(setup, gpu_gib, resident, True, setup.training.max_response_tokens, trains=True, on=on)
    tokens = int(cache * on.count * GIB / (student.kv_bytes + teacher.kv_bytes))
    return (student.weight_bytes + teacher.weight_bytes) / GIB / on.count + cache, tokens


def _cache_gib(
    setup: Setup, gpu_gib: float, resident: float, blending: bool, limit: int, trains: bool, on: Gpus
) -> float:
    """GiB on each GPU for KV caches beside what is `resident`; UserError if one full sequence does not fit."""
    learns = trains and not on.apart
    if gpu_gib - resident < kv_gib(setup, blending, limit) / on.count or (learns and learning_gib(setup, on) > gpu_gib):
        raise too_small(setup, gpu_gib, blending, limit, trains, on)
    return gpu_gib - resident


def cpu_cache_tokens(setup: Setup, context: int, owner: Literal["student", "teacher"] = "student") -> int:
    """Tokens in the KV cache of a serving engine without a GPU: of CPU_BATCH sequences, within CPU_CACHE_GIB."""
    of_token = decoder(setup.student if owner == "student" else setup.teacher, setup).kv_bytes
    return max(2 * context, min(CPU_BATCH * context, int(CPU_CACHE_GIB * GIB / of_token)))


def learner_gib(setup: Setup) -> float:
    """GiB of the student in training: float32 master, AdamW moments, gradient, and the copy that computes."""
    student = decoder(setup.student, setup)
    # The forward pass works on a copy in `engine.dtype`, except where that is the master's own.
    copy_bytes = 0 if setup.engine.dtype == "float32" else student.value_bytes
    return student.parameters * (MASTER_BYTES + copy_bytes) / GIB


def kv_gib(setup: Setup, blending: bool, max_tokens: int | None = None) -> float:
    """GiB of the KV cache of one sequence of full length: the student's, and the teacher's if `blending`."""
    training = setup.training
    length = training.max_prompt_tokens + (training.max_response_tokens if max_tokens is None else max_tokens)
    models = (setup.student, setup.teacher) if blending else (setup.student,)
    return sum(length * decoder(model, setup).kv_bytes for model in models) / GIB


def too_small(
    setup: Setup,
    gpu_gib: float,
    blending: bool,
    max_tokens: int | None,
    trains: bool = True,
    on: Gpus = ONE_GPU,
) -> UserError:
    """What is wrong with GPUs that hold no sequence of full length, or not the student that learns."""
    decoding = resident_gib(setup, trains, on, blending) + kv_gib(setup, blending, max_tokens) / on.count
    learning = learning_gib(setup, on) if trains and not on.apart else 0.0
    each = "" if on.count == 1 else f" on each of {on.count} GPUs"
    what = f"for one sequence of full length{' while blending' if blending else ''}"
    fewer = "fewer prompt or response tokens, or a runtime.rollout_batch of your own"
    if learning > decoding:
        what, fewer = "while the student learns", "a trainer over several GPUs, or a smaller pair"
    return UserError(
        f"GPU memory: {gpu_gib:.1f} GiB — at least {max(decoding, learning):.1f} GiB{each} {what} ({setup.title}): "
        f"a larger GPU, {fewer}"
    )


def memory(setup: Setup, runtime: Runtime, gpu_gib: float, placement: Placement | None = None) -> Memory:
    """Memory of a trial (all roles on one GPU where no `placement` is given) and of an evaluator, the student alone."""
    placement = placement or Placement(gpus=1)
    sampling, teacher, learner = (Gpus.of(placement, role) for role in ("rollout", "teacher", "learner"))
    w_s, w_q = (decoder(model, setup).weight_bytes / GIB for model in (setup.student, setup.teacher))
    kv_s, kv_both = (kv_gib(setup, blending) / sampling.count for blending in (False, True))
    resident, resident_both = (resident_gib(setup, on=sampling, blending=blending) for blending in (False, True))
    scoring, learning = scoring_gib(setup, teacher), learning_gib(setup, learner)
    others = max(scoring, learning)
    limit, most = setup.evaluation.max_response_tokens, sequences_per_step(setup.training)
    fits_alone, fits_blending = (
        sequences_that_fit(setup, gpu_gib, blending, on=sampling) if others <= gpu_gib else 0
        for blending in (False, True)
    )
    wanted = runtime.rollout_batch  # not `decode_batch`: an experiment without blending may have no room for it
    alone, blending = (min(most, fits if wanted is None else wanted) for fits in (fits_alone, fits_blending))
    return Memory(
        student_weights=w_s / sampling.count,
        teacher_weights=w_q / teacher.count,
        learner_state=learner_gib(setup) / learner.count,
        workspace=WORKSPACE_GIB,
        kv_student=kv_s,
        kv_teacher=kv_both - kv_s,
        sequences_decoded_vanilla=alone,
        sequences_decoded_blending=blending,
        sequences_decoded_evaluation=wanted or sequences_that_fit(setup, gpu_gib, False, limit, trains=False),
        generation_vanilla=w_s / sampling.count + alone * kv_s,
        generation_blending=(w_s + w_q) / sampling.count + blending * kv_both,
        scoring=scoring,
        learning=learning,
        peak_vanilla=max(others, resident + alone * kv_s),
        peak_blending=max(others, resident_both + blending * kv_both),
        sequences_at_once_vanilla=fits_alone,
        sequences_at_once_blending=fits_blending,
    )
