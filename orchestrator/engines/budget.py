"""How much of a GPU each role may take, in absolute numbers: engines obey it, plans and `trb doctor` print it.

Pure arithmetic on a setup; no torch. A budget is of one GPU in one situation:

    decoding     the student alone samples, in a trial
    blending     the student samples beside the teacher
    evaluating   the student alone samples, and nothing else is on the GPU
    answering    the teacher answers prompts itself, for the supervised stage
    scoring      the teacher reads finished rollouts
    learning     the student is updated

Roles that share a GPU take turns. KV caches are given back before the teacher scores and the learner comes; the
learner's state lies in the host's memory while others work. Weights of sampler and scorer stay, and so do captured CUDA
graphs. Roles with GPUs of their own (`apart`) hold only what they need themselves. G GPUs of a role share out weights,
learner state and caches; each has contexts, workspace and margin of its own.

Every number below is either counted on a pretended GPU (`tests/rehearsal`), read in the source of the library that
takes it, or named an assumption. `make rehearse-gpu` compares the first kind with what is counted today.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.config import Model, Runtime, Setup
from orchestrator.engines import memory
from orchestrator.engines.catalog import ENGINES, LONGEST_ROUND
from orchestrator.engines.memory import BYTES, GIB, ONE_GPU, Decoder, Gpus, decoder
from orchestrator.errors import UserError

Situation = Literal["decoding", "blending", "evaluating", "answering", "scoring", "learning"]
OTHERS = ("contexts", "margin", "teacher", "student")  # parts that are no engine's own

# --- any process ---
CONTEXT_GIB = 0.5  # a CUDA context with cuBLAS workspaces, each process (assumption: 0.4 to 0.6 on H100)
MARGIN_SHARE = 0.03  # of the card: pieces that allocators cannot use (assumption)

# --- SGLang ---
ATTENTION_GIB = 0.5  # workspace of flashinfer's and TensorRT-LLM's kernels; FlashAttention 3 takes next to none
REQUESTS = 256  # that run at once: what CUDA graphs are captured for; more rows hide no more launches
PREFILLED = 8192  # tokens of prompts in one pass of one model
PREFILLED_BY_TWO = 4096  # the same where student and teacher read them: the teacher's pass is the larger one
GRAPH_BYTES = 2**21  # of a captured graph for each row of the largest batch, outside of torch (SGLang's own heuristic)
LOGIT_BYTES = 2 + 4  # of a row's logits: the head's bfloat16 and its copy in float32
SAMPLED_AT_ONCE = 2**25  # logits that the sampler works on at once
SAMPLER_BYTES = 22  # of each of them: counted
# Of a blended round: requests × γ × vocabulary of the student's distributions (1 GiB in float32).
ROUND_VALUES = 2**28
JUDGED_AT_ONCE = 2**25  # of these, judged at once
JUDGED_BYTES = 64  # of each value that is judged: counted
RESERVED_SLOTS = 2 * LONGEST_ROUND  # of the cache behind each request, which SGLang keeps free for drafts

# --- the torch engine ---
DRAFT_VALUES = 2**25  # rows × γ × vocabulary of a blended round
DRAFT_BYTES = 96  # of each of them: counted
PLAIN_BYTES = 32  # of each logit of a plain step: counted
SPARE_SLOTS = 0.1  # of a row's length: slots of rejected drafts, until the cache is compacted

# --- passes of scoring and learning ---
MOST_TOKENS = 16384  # of a micro-batch: more gain nothing
LOSS_CHUNKS_GIB = 1.9  # gathered rows of the head, and logits of the tokens whose mass is measured: counted
SCORED_AT_ONCE = 2**27  # logits of the teacher that are read at once
SCORED_BYTES = 20  # of each of them: counted


@dataclass(frozen=True)
class Budget:
    """GiB of one GPU by what takes them, and what its engine may run: `total_gib` never exceeds `card_gib`.

    `kv_tokens` fit into the KV caches (of both models while blending) over all GPUs of the role. `requests` run at
    once. `tokens` are those of one pass of scoring or learning.
    """

    situation: Situation
    card_gib: float
    parts: Mapping[str, float] = field(default_factory=dict)
    kv_tokens: int = 0
    requests: int = 0
    tokens: int = 0

    @property
    def total_gib(self) -> float:
        """All of it, with what other roles keep."""
        return sum(self.parts.values())

    @property
    def own_gib(self) -> float:
        """The part of a serving engine's own processes: it has to be free when the engine starts."""
        others = sum(gib for name, gib in self.parts.items() if name in OTHERS)
        return self.total_gib - others + CONTEXT_GIB

    def __str__(self) -> str:
        """One line: `learning 61.2: learner 19.2, gradient 6.4 …; passes of 16,384 tokens`."""
        largest = sorted(self.parts.items(), key=lambda part: -part[1])
        taken = ", ".join(f"{name} {gib:.1f}" for name, gib in largest if gib >= 0.05)
        able = f"passes of {self.tokens:,} tokens" if self.tokens else f"{self.requests} responses at once"
        if self.kv_tokens:
            able += f" in a cache of {self.kv_tokens:,} tokens"
        return f"{self.situation} {self.total_gib:.1f}: {taken}; {able}"


def budget(
    setup: Setup,
    runtime: Runtime,
    card_gib: float,
    situation: Situation,
    on: Gpus = ONE_GPU,
    max_tokens: int | None = None,
) -> Budget:
    """What the engine of a situation may take of each of its GPUs, of which it has `card_gib`.

    `max_tokens` limits responses where it is not the training's or the evaluation's limit. Raises UserError where one
    sequence of full length does not fit.
    """
    if situation in ("scoring", "learning"):
        return _passes(setup, runtime, card_gib, situation, on)
    samples = _models_sampling(setup, situation)
    context = setup.training.max_prompt_tokens + (max_tokens or _response_limit(setup, situation))
    if is_pooled(setup):
        return _pool(setup, runtime, card_gib, situation, on, samples, context)
    return _batch(setup, runtime, card_gib, situation, on, samples, context)


def is_pooled(setup: Setup) -> bool:
    """Whether the setup's sampler keeps its KV cache as a pool of tokens, in processes of its own."""
    return ENGINES[setup.engine.sampler].pooled


# --- sampling ---


def _pool(
    setup: Setup,
    runtime: Runtime,
    card_gib: float,
    situation: Situation,
    on: Gpus,
    samples: list[Decoder],
    context: int,
) -> Budget:
    """The pool of a serving engine: all that weights, workspace and others leave, as far as its requests can use it."""
    blending, vocabulary = situation == "blending", setup.vocabulary.size
    most = blending_requests(setup) if blending else REQUESTS
    requests = min(most, runtime.rollout_batch or most)
    parts = _others(setup, card_gib, situation, on)
    parts["weights"] = sum(model.weight_bytes for model in samples) / GIB / on.count
    parts["attention"] = ATTENTION_GIB
    parts["requests"] = 4 * (requests + 1) * (context + RESERVED_SLOTS) / GIB  # table of slots
    if blending:
        parts["prefill"] = max(prefill_gib(model, PREFILLED_BY_TWO) for model in samples)
        parts["round"] = blended_round_gib(setup, requests)
    else:
        parts["graphs"] = graphs_gib(setup, requests)
        parts["prefill"] = prefill_gib(samples[0], PREFILLED)
        parts["sampler"] = sampler_gib(vocabulary, requests)
    of_token = sum(model.kv_bytes for model in samples)
    slots = context + (RESERVED_SLOTS if blending else 0)
    left = (card_gib - sum(parts.values())) * on.count * GIB
    tokens = min(int(left // of_token), requests * slots)
    if tokens < slots:
        raise _too_small(setup, card_gib, situation, sum(parts.values()) + slots * of_token / GIB / on.count, on)
    parts["KV cache"] = tokens * of_token / GIB / on.count
    return Budget(situation, card_gib, parts, kv_tokens=tokens, requests=requests)


def _batch(
    setup: Setup,
    runtime: Runtime,
    card_gib: float,
    situation: Situation,
    on: Gpus,
    samples: list[Decoder],
    context: int,
) -> Budget:
    """The largest batch of full-length rows that the torch engine decodes at once, or the configured one."""
    blending, vocabulary = situation == "blending", setup.vocabulary.size
    parts = _others(setup, card_gib, situation, on)
    parts["weights"] = sum(model.weight_bytes for model in samples) / GIB / on.count
    if blending:
        parts["round"] = DRAFT_VALUES * DRAFT_BYTES / GIB
    slots = slots_of(context, LONGEST_ROUND if blending else 1)
    of_token = sum(model.kv_bytes for model in samples)
    # Under a mask attention works on keys and values that are repeated for each query head, of one layer at a time.
    repeated = max(model.kv_bytes / model.layers * model.head_groups for model in samples)
    of_row = slots * (of_token + repeated) + (0 if blending else vocabulary * PLAIN_BYTES)
    left = (card_gib - sum(parts.values())) * GIB * on.count
    rows = runtime.rollout_batch or int(left // of_row)
    if rows < 1:
        raise _too_small(setup, card_gib, situation, sum(parts.values()) + of_row / GIB / on.count, on)
    parts["KV cache"] = rows * slots * of_token / GIB / on.count
    parts["step"] = rows * (of_row - slots * of_token) / GIB / on.count
    return Budget(situation, card_gib, parts, kv_tokens=rows * slots, requests=rows)


def slots_of(length: int, drafted: int) -> int:
    """Slots that a row of `length` tokens takes at most in the torch engine, in rounds of γ = `drafted`."""
    return length if drafted == 1 else math.ceil(length * (1 + SPARE_SLOTS)) + drafted


def blending_requests(setup: Setup) -> int:
    """Requests that a blending engine runs at once: as many as the distributions of a longest round leave room for."""
    return max(1, min(REQUESTS, ROUND_VALUES // (LONGEST_ROUND * setup.vocabulary.size)))


def longest_round(setup: Setup, rows: int) -> int:
    """γ up to which the torch engine judges a round of so many rows at once."""
    return max(1, DRAFT_VALUES // (rows * setup.vocabulary.size))


def graphs_gib(setup: Setup, requests: int) -> float:
    """CUDA graphs of decode steps up to a batch of `requests`, with the logits that they write."""
    return requests * (GRAPH_BYTES + LOGIT_BYTES * setup.vocabulary.size) / GIB


def prefill_gib(model: Decoder, tokens: int) -> float:
    """Activations of one layer's MLP, the most that a forward pass holds at once (`sglang/srt/models/qwen2.py`)."""
    return tokens * (3 * model.hidden + 3 * model.ffn) * model.value_bytes / GIB


def sampler_gib(vocabulary: int, requests: int) -> float:
    """Temporaries of our sampler in a serving engine, which takes a batch in parts."""
    return min(SAMPLED_AT_ONCE, requests * vocabulary) * SAMPLER_BYTES / GIB


def blended_round_gib(setup: Setup, requests: int) -> float:
    """A longest round of the blending engine: the student's distributions, uniforms, and the verdict on a part."""
    vocabulary, length = setup.vocabulary.size, setup.training.max_response_tokens
    values = requests * LONGEST_ROUND * vocabulary
    # A part has one request at least, however large its distributions are.
    judged = min(values, max(JUDGED_AT_ONCE, LONGEST_ROUND * vocabulary))
    step = requests * vocabulary * (LOGIT_BYTES + 12)
    uniforms = 2 * 3 * 8 * requests * length  # of each request, and in the table of the batch
    return (4 * values + judged * JUDGED_BYTES + step + uniforms) / GIB


# --- scoring and learning ---


def _passes(setup: Setup, runtime: Runtime, card_gib: float, situation: Situation, on: Gpus) -> Budget:
    """Passes over as many tokens as there is room for, or as are configured, and over one row at least."""
    learning = situation == "learning"
    parts = _others(setup, card_gib, situation, on)
    if learning:
        parts |= {name: gib / on.count for name, gib in memory.learner_parts(setup).items()}
        parts["loss"] = loss_gib(setup)
        of_token = learned_token_bytes(setup)
    else:
        if on.apart:
            parts["weights"] = decoder(setup.teacher, setup).weight_bytes / GIB / on.count
        parts["head"] = min(SCORED_AT_ONCE, MOST_TOKENS * setup.vocabulary.size) * SCORED_BYTES / GIB
        of_token = scored_token_bytes(setup)
    longest = setup.training.max_prompt_tokens + setup.training.max_response_tokens
    fixed = sum(parts.values())
    fitting = int((card_gib - fixed) * GIB // of_token)
    if fitting < longest:
        raise _too_small(setup, card_gib, situation, fixed + longest * of_token / GIB, on)
    tokens = min(fitting, max(MOST_TOKENS, longest))
    if runtime.micro_batch_tokens is not None:
        tokens = max(longest, runtime.micro_batch_tokens)
    parts["activations"] = tokens * of_token / GIB
    return Budget(situation, card_gib, parts, tokens=tokens)


def learned_token_bytes(setup: Setup) -> int:
    """Bytes that a token of a micro-batch takes while the student learns with checkpointed layers.

    Each layer's input is kept: the residual stream, in float32. One layer at a time is computed again, with its
    gradients; the factors of its widths were counted, and are rounded up.
    """
    shape = setup.student.shape
    projected = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    kept = 4 * shape.layers * shape.hidden
    return kept + 24 * projected + 48 * shape.hidden + 36 * shape.ffn


def scored_token_bytes(setup: Setup) -> int:
    """Bytes that a token takes while the teacher scores: one layer's MLP, the residual and the last hidden states."""
    shape, value = setup.teacher.shape, BYTES[setup.engine.dtype]
    return value * (3 * shape.ffn + 6 * shape.hidden)


def loss_gib(setup: Setup) -> float:
    """The loss on hidden states: three more matrices of the head's size in float32, one as it computes, and chunks."""
    head = setup.vocabulary.size * setup.student.shape.hidden
    return (3 * 4 + 2) * head / GIB + LOSS_CHUNKS_GIB


# --- beside the role ---


def _others(setup: Setup, card_gib: float, situation: Situation, on: Gpus) -> dict[str, float]:
    """Contexts, margin, and what other roles keep on the GPU."""
    pooled = is_pooled(setup)
    alone = situation == "evaluating" or on.apart
    processes = (1 if alone else 2) + pooled  # roles have up to two, and a pool has one of its own
    parts = {"contexts": CONTEXT_GIB * processes, "margin": MARGIN_SHARE * card_gib}
    if alone:
        return parts
    student, teacher = (decoder(model, setup).weight_bytes / GIB / on.count for model in (setup.student, setup.teacher))
    if situation in ("decoding", "scoring", "learning"):
        parts["teacher"] = teacher
    if situation in ("scoring", "learning"):
        parts["student"] = student + (graphs_gib(setup, REQUESTS) if pooled else 0.0)
    return parts


def _models_sampling(setup: Setup, situation: Situation) -> list[Decoder]:
    models: dict[str, list[Model]] = {
        "blending": [setup.student, setup.teacher],
        "answering": [setup.teacher],
    }
    return [decoder(model, setup) for model in models.get(situation, [setup.student])]


def _response_limit(setup: Setup, situation: Situation) -> int:
    """Tokens of the longest response; engines of the student alone are started for training and evaluation alike."""
    training, evaluation = setup.training.max_response_tokens, setup.evaluation.max_response_tokens
    if situation == "evaluating":
        return evaluation
    return training


class TooSmall(UserError):
    """A GPU that holds no sequence of full length, or not the student that learns; it would take `needed_gib`."""

    def __init__(self, message: str, needed_gib: float):
        super().__init__(message)
        self.needed_gib = needed_gib


def _too_small(setup: Setup, card_gib: float, situation: Situation, needed: float, on: Gpus) -> TooSmall:
    each = "" if on.count == 1 else f" on each of {on.count} GPUs"
    remedies: dict[str, tuple[str, str]] = {
        "learning": ("while the student learns", "a trainer over several GPUs, or a smaller pair"),
        "scoring": ("while the teacher scores", "a trainer over several GPUs, or a smaller pair"),
        "blending": ("for one sequence of full length while blending", "fewer prompt or response tokens"),
    }
    what, fewer = remedies.get(situation, ("for one sequence of full length", "fewer prompt or response tokens"))
    message = f"GPU memory: {card_gib:.1f} GiB — at least {needed:.1f} GiB{each} {what} ({setup.title})"
    return TooSmall(f"{message}: a larger GPU, {fewer}", needed)
