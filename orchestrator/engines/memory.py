"""Sizes of a setup's models, and of what engines hold beside them. Pure arithmetic.

GiB are 2³⁰ bytes. `engines.budget` computes the memory that a role may hold on a GPU, and when.
Constants are limits that the program sets, or sizes that were counted on a pretended GPU
(`tests/rehearsal`) or read in a library's source. `make rehearse-gpu` counts again and compares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from orchestrator.config import Placement, Runtime, Setup, Training
from orchestrator.pair import Model, Shape
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


# --- SGLang ---

LONGEST_ROUND = 16  # the largest γ of an engine that reserves room for drafts beside each request
REQUESTS = 256  # at once, as CUDA graphs are captured for them; more rows hide no more launches
PREFILLED = 8192  # tokens of prompts in one pass of one model
PREFILLED_BY_TWO = 4096  # the same if student and teacher read them: the teacher's pass is larger
# Bytes of a captured graph per row of the largest batch, outside of torch (SGLang's own heuristic).
GRAPH_BYTES = 2**21
# Per logit: bfloat16 and its copy in float32, or float32 alone (`engine.head_dtype`).
LOGIT_BYTES = 2 + 4
SAMPLED_AT_ONCE = 2**25  # logits that the sampler processes at once
SAMPLER_BYTES = 26  # per such logit by torch: counted, with the float64 copy of its sum
KERNEL_BLOCK = 4096  # logits that a program of the kernel reads
KERNEL_IDS = 32  # most support ids that the kernel ranks; torch reads logits for more of them
# Of a blended round: requests × γ × vocabulary of the student's distributions (1 GiB in float32).
# Short rounds have more requests (`fitting_round`).
ROUND_VALUES = 2**28
JUDGED_AT_ONCE = 2**25  # of these values, judged at once
JUDGED_BYTES = 64  # per judged value: counted
RESERVED_SLOTS = 2 * LONGEST_ROUND  # cache slots behind each request that SGLang keeps for drafts


def blending_requests(setup: Setup) -> int:
    """Requests that a blending engine runs at once; those of a longer round are fewer."""
    return min(REQUESTS, fitting_round(setup.vocabulary.size, 1))


def fitting_round(vocabulary: int, factor: int) -> int:
    """The most requests of a blended round of γ = `factor`, or the largest γ of so many requests."""
    return max(1, ROUND_VALUES // (factor * vocabulary))


def graphs_gib(setup: Setup, requests: int) -> float:
    """CUDA graphs of decode steps up to a batch of `requests`, with their logits."""
    return requests * (GRAPH_BYTES + LOGIT_BYTES * setup.vocabulary.size) / GIB


def prefill_gib(model: Decoder, tokens: int) -> float:
    """Activations of one layer's MLP, a forward pass's maximum (`sglang/srt/models/qwen2.py`)."""
    return tokens * (3 * model.hidden + 3 * model.ffn) * model.value_bytes / GIB


def by_kernel(runtime: Runtime, setup: Setup) -> bool:
    """Whether a GPU reads logits by the kernel; `draws_by_kernel` also asks how many GPUs sample."""
    support = setup.training.top_k if setup.training.objective != "full" else math.inf
    return runtime.logits_kernel != "torch" and support <= KERNEL_IDS


def sampler_gib(setup: Setup, requests: int, kernel: bool) -> float:
    """Temporaries of our sampler in a serving engine.

    Torch's operations process a batch in parts. The kernel keeps, of each block of logits, three
    numbers and as many ids as the support has, in 8 bytes each.
    """
    vocabulary = setup.vocabulary.size
    if not kernel:
        return min(SAMPLED_AT_ONCE, requests * vocabulary) * SAMPLER_BYTES / GIB
    blocks = math.ceil(vocabulary / KERNEL_BLOCK)
    return requests * (blocks + 1) * 8 * (3 + setup.training.top_k) / GIB


def blended_round_gib(setup: Setup, requests: int) -> float:
    """A blending engine's largest round: student distributions, uniforms, verdict on a part."""
    vocabulary = setup.vocabulary.size
    length = setup.training.max_response_tokens
    values = min(requests * LONGEST_ROUND * vocabulary, max(ROUND_VALUES, requests * vocabulary))
    # A part has at least one request, however large its distributions.
    judged = min(values, max(JUDGED_AT_ONCE, LONGEST_ROUND * vocabulary))
    step = requests * vocabulary * (LOGIT_BYTES + 12)
    uniforms = 2 * 3 * 8 * requests * length  # on each request, and in the table of the batch
    return (4 * values + judged * JUDGED_BYTES + step + uniforms) / GIB


# --- the torch engine ---
DRAFT_VALUES = 2**25  # rows × γ × vocabulary of a blended round
DRAFT_BYTES = 96  # per such value: counted
PLAIN_BYTES = 32  # per logit of a plain step: counted
SPARE_SLOTS = 0.1  # of a row's length: slots of rejected drafts, until the cache is compacted


def slots_of(length: int, drafted: int) -> int:
    """Most cache slots of a row of `length` tokens in the torch engine, for γ = `drafted`."""
    if drafted == 1:
        return length  # a single draft that is rejected leaves no slot behind
    return math.ceil(length * (1 + SPARE_SLOTS)) + drafted


def longest_round(setup: Setup, rows: int) -> int:
    """The largest γ at which the torch engine judges a round of `rows` rows at once."""
    return max(1, DRAFT_VALUES // (rows * setup.vocabulary.size))


# --- passes of scoring and learning ---

MOST_TOKENS = 16384  # of a micro-batch: more gain nothing
LOSS_CHUNKS_GIB = 1.9  # gathered rows of the head, and logits for measuring masses: counted
SCORED_AT_ONCE = 2**27  # teacher logits that are read at once
SCORED_BYTES = 20  # per such logit by torch: counted; the kernel holds logits alone


def learned_token_bytes(setup: Setup) -> int:
    """Bytes per token of a micro-batch while the student learns with checkpointed layers.

    Each layer's input is kept: the residual stream, in float32. One layer at a time is recomputed
    with its gradients; the factors of its widths were counted and rounded up.
    """
    shape = setup.student.shape
    projected = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    kept = 4 * shape.layers * shape.hidden
    return kept + 24 * projected + 48 * shape.hidden + 36 * shape.ffn


def kept_token_bytes(setup: Setup) -> int:
    """Bytes per token of a micro-batch while the student learns and layers keep what they computed.

    A layer keeps in 16 bits the inputs and outputs of its two norms; queries and keys before and
    after theirs, values, and the attention's output; and of the MLP both projections, the activated
    one and their product. Counted, with the last hidden states and their gradients beside. Norms
    that run as one kernel (`passes.fuse_norms`) are assumed: others keep twice as much of theirs,
    and a learner that runs out of memory is made leaner.
    """
    shape = setup.student.shape
    projected = (shape.heads + shape.kv_heads) * shape.head_dim
    of_layer = 2 * (4 * shape.hidden + 3 * projected + 4 * shape.ffn)
    return shape.layers * of_layer + 32 * shape.hidden


def kept_bytes(setup: Setup) -> int:
    """Bytes of the weights in the dtype of the passes, which all layers keep for the backward."""
    return 2 * decoder(setup.student, setup).parameters


def scored_token_bytes(setup: Setup) -> int:
    """Bytes per token while the teacher scores: a layer's MLP, residual and last hidden states."""
    shape = setup.teacher.shape
    return BYTES[setup.engine.dtype] * (3 * shape.ffn + 6 * shape.hidden)


def loss_gib(setup: Setup) -> float:
    """The loss on hidden states: chunks, three float32 copies of the head and one for computing."""
    head = setup.vocabulary.size * setup.student.shape.hidden
    return (3 * 4 + 2) * head / GIB + LOSS_CHUNKS_GIB
