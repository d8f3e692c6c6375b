"""Sizes of a setup's models: parameters, weights, KV cache, learner state. Pure arithmetic.

GiB are 2³⁰ bytes. `engines.budget` computes the memory that a role may hold on a GPU, and when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.config import Model, Placement, Setup, Shape, Training
from orchestrator.rules import RoleName

# What a GPU is used for; `engines.budget` says what each is.
Situation = Literal["decoding", "blending", "evaluating", "answering", "scoring", "learning"]
GIB = 2**30
BYTES = {"bfloat16": 2, "float32": 4}  # per value in `engine.dtype`
WEIGHT_BYTES = 4  # per parameter of the master weights, float32
STATE_BYTES = WEIGHT_BYTES + 8  # per parameter in training: weight, two AdamW moments
GRADIENT_BYTES = 4
# Most parameters of student and teacher together for CPUs; embedded pairs have under one million.
CPU_PARAMETERS = 500e6
CPU_CACHE_GIB = 1.0
CPU_BATCH = 512  # sequences at once without a GPU, where the embedded models' caches are small


@dataclass(frozen=True)
class Decoder:
    """Sizes of a model that determine its memory and arithmetic."""

    layers: int
    hidden: int
    ffn: int
    parameters: int
    value_bytes: int
    kv_bytes: int  # per token, keys and values of all layers
    head_groups: int  # query heads that share one key–value head

    @property
    def weight_bytes(self) -> int:
        return self.parameters * self.value_bytes


@dataclass(frozen=True)
class Gpus:
    """The GPUs of one role: their count, and whether it owns them (`apart`) or takes turns."""

    count: int = 1
    apart: bool = False

    @staticmethod
    def of(placement: Placement, role: RoleName) -> Gpus:
        """The GPUs that a placement gives to a role; a share of a GPU counts as a smaller one."""
        return Gpus(max(1, int(placement.gpus_of(role))), placement.role_gpus is not None)


ONE_GPU = Gpus()


def parameters(shape: Shape, vocabulary_size: int) -> int:
    """Parameters as counted in a model's files, else those of a Qwen3 decoder of the same sizes.

    Tied embeddings are counted once.
    """
    if shape.parameters:
        return shape.parameters
    embeddings = vocabulary_size * shape.hidden * (1 if shape.tied else 2)
    # Projections q and o have all heads, k and v the key–value heads; none has a bias.
    attention = shape.hidden * shape.head_dim * 2 * (shape.heads + shape.kv_heads)
    norms = 2 * shape.hidden + 2 * shape.head_dim  # before attention and MLP; of queries and keys
    mlp = 3 * shape.hidden * shape.ffn
    return embeddings + shape.layers * (attention + norms + mlp) + shape.hidden


def needs_gpu(setup: Setup) -> bool:
    """Whether the pair is too large for training on CPUs in reasonable time."""
    size = setup.vocabulary.size
    student = parameters(setup.student.shape, size)
    teacher = parameters(setup.teacher.shape, size)
    return student + teacher > CPU_PARAMETERS


def decoder(model: Model, setup: Setup) -> Decoder:
    """`model` in the setup's vocabulary and dtype."""
    shape, value_bytes = model.shape, BYTES[setup.engine.dtype]
    return Decoder(
        layers=shape.layers,
        hidden=shape.hidden,
        ffn=shape.ffn,
        parameters=parameters(shape, setup.vocabulary.size),
        value_bytes=value_bytes,
        kv_bytes=2 * shape.layers * shape.kv_heads * shape.head_dim * value_bytes,
        head_groups=shape.heads // shape.kv_heads,
    )


def sequences_per_step(training: Training) -> int:
    """Rollouts of one optimizer step."""
    return training.prompts_per_step * training.samples_per_prompt


def cpu_cache_tokens(
    setup: Setup, context: int, owner: Literal["student", "teacher"] = "student"
) -> int:
    """Tokens in a serving engine's KV cache on CPUs: CPU_BATCH sequences, within CPU_CACHE_GIB."""
    of_token = decoder(setup.student if owner == "student" else setup.teacher, setup).kv_bytes
    return max(2 * context, min(CPU_BATCH * context, int(CPU_CACHE_GIB * GIB / of_token)))


def adapter_parameters(shape: Shape, rank: int) -> int:
    """Parameters of low-rank adapters beside every linear layer of a gated decoder but the head.

    A of a layer has rank × its inputs, B has its outputs × rank.
    """
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 2 * (shape.hidden + queries) + 2 * (shape.hidden + keys)  # q and o, k and v
    mlp = 3 * (shape.hidden + shape.ffn)
    return shape.layers * rank * (attention + mlp)


def learner_parts(setup: Setup, rank: int = 0) -> dict[str, float]:
    """GiB of the student in training, in float32: its gradient, and its state, kept on the host.

    With a `rank` only adapters have moments and a gradient, and the weights lie beside them.
    """
    weights = trained = decoder(setup.student, setup).parameters
    if rank:
        trained = adapter_parameters(setup.student.shape, rank)
    frozen = weights if rank else 0
    return {
        "learner": (trained * STATE_BYTES + frozen * WEIGHT_BYTES) / GIB,
        "gradient": trained * GRADIENT_BYTES / GIB,
    }


def learner_gib(setup: Setup) -> float:
    """GiB of all of `learner_parts`."""
    return sum(learner_parts(setup).values())


def kv_gib(setup: Setup, blending: bool, max_tokens: int | None = None) -> float:
    """GiB of a full-length sequence's KV cache: the student's, and the teacher's if `blending`."""
    training = setup.training
    response = training.max_response_tokens if max_tokens is None else max_tokens
    of_token = decoder(setup.student, setup).kv_bytes
    if blending:
        of_token += decoder(setup.teacher, setup).kv_bytes
    return (training.max_prompt_tokens + response) * of_token / GIB
