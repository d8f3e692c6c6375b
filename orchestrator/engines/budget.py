"""Computes each role's budget of GPU memory. Engines obey it; plans and `trb doctor` print it.

Pure arithmetic on a setup; no torch. A budget is for one GPU in one situation:

    decoding     the student alone samples, in a trial
    blending     the student samples beside the teacher
    evaluating   the student alone samples, with the GPU for itself
    answering    the teacher answers prompts itself, for the supervised stage
    scoring      the teacher reads finished rollouts
    learning     the student is updated

Roles that share a GPU take turns. The sampler releases its KV cache before scoring and learning;
the learner's state lies in host memory while others work. Weights of sampler and scorer stay, and
so do captured CUDA graphs. Roles with their own GPUs (`apart`) hold only their own memory. The G
GPUs of a role divide weights, learner state and caches; each has its own contexts, workspace and
margin. New weights may come to SGLang through a copy on the GPU that it shares with the learner. The
copy exists while they are loaded, in place of the released KV cache; without room for it they come
through the host.

`engines.device.granted` asks for the budget of its process, with the card's memory times the
placement's `gpu_share`. The torch engine reads the result itself. For SGLang,
`sglang.engine.settings` and `sglang.blending.blending_settings` carry it to the engine's process,
where `sglang.private._arguments` makes it SGLang's `max_total_tokens` and `max_running_requests`.

Each constant below was counted on a pretended GPU (`tests/rehearsal`), read in a library's source,
or is marked as an assumption. `make rehearse-gpu` counts again and compares.
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
OTHERS = ("contexts", "margin", "teacher", "student")  # parts outside the engine's own memory

# --- any process ---
# A CUDA context with cuBLAS workspaces, for each process (assumption: 0.4 to 0.6 on an H100).
CONTEXT_GIB = 0.5
MARGIN_SHARE = 0.03  # of the card: fragments that allocators cannot use (assumption)

# --- SGLang ---
# Workspace of flashinfer's and TensorRT-LLM's kernels; FlashAttention 3 takes next to none.
ATTENTION_GIB = 0.5
REQUESTS = 256  # at once, as CUDA graphs are captured for them; more rows hide no more launches
PREFILLED = 8192  # tokens of prompts in one pass of one model
PREFILLED_BY_TWO = 4096  # the same if student and teacher read them: the teacher's pass is larger
# Bytes of a captured graph per row of the largest batch, outside of torch (SGLang's own heuristic).
GRAPH_BYTES = 2**21
# Per logit: bfloat16 and its copy in float32, or float32 alone (`engine.head_dtype`).
LOGIT_BYTES = 2 + 4
SAMPLED_AT_ONCE = 2**25  # logits that the sampler processes at once
SAMPLER_BYTES = 26  # per such logit: counted, with the float64 copy of its sum
# Of a blended round: requests × γ × vocabulary of the student's distributions (1 GiB in float32).
ROUND_VALUES = 2**28
JUDGED_AT_ONCE = 2**25  # of these values, judged at once
JUDGED_BYTES = 64  # per judged value: counted
RESERVED_SLOTS = 2 * LONGEST_ROUND  # cache slots behind each request that SGLang keeps for drafts

# --- the torch engine ---
DRAFT_VALUES = 2**25  # rows × γ × vocabulary of a blended round
DRAFT_BYTES = 96  # per such value: counted
PLAIN_BYTES = 32  # per logit of a plain step: counted
SPARE_SLOTS = 0.1  # of a row's length: slots of rejected drafts, until the cache is compacted

# --- passes of scoring and learning ---
MOST_TOKENS = 16384  # of a micro-batch: more gain nothing
LOSS_CHUNKS_GIB = 1.9  # gathered rows of the head, and logits for measuring masses: counted
SCORED_AT_ONCE = 2**27  # teacher logits that are read at once
SCORED_BYTES = 20  # per such logit: counted


class TooSmall(UserError):
    """A GPU is too small for one full-length sequence or the learner, which take `needed_gib`."""

    def __init__(self, message: str, needed_gib: float):
        super().__init__(message)
        self.needed_gib = needed_gib


@dataclass(frozen=True)
class Budget:
    """GiB of one GPU by `parts`, and limits of its engine; `total_gib` never exceeds `card_gib`.

    `kv_tokens` fit into the KV caches (of both models while blending) over all GPUs of the role.
    `requests` run at once. One pass of scoring or learning takes `tokens`.
    """

    situation: Situation
    card_gib: float
    parts: Mapping[str, float] = field(default_factory=dict)
    kv_tokens: int = 0
    requests: int = 0
    tokens: int = 0

    @property
    def total_gib(self) -> float:
        """The sum of all parts, other roles' memory included."""
        return sum(self.parts.values())

    @property
    def own_gib(self) -> float:
        """The memory of a serving engine's own processes, which must be free when it starts."""
        others = sum(gib for name, gib in self.parts.items() if name in OTHERS)
        return self.total_gib - others + CONTEXT_GIB

    def __str__(self) -> str:
        """One line: `learning 61.2: learner 19.2, gradient 6.4 …; passes of 16,384 tokens`."""
        largest = sorted(self.parts.items(), key=lambda part: -part[1])
        taken = ", ".join(f"{name} {gib:.1f}" for name, gib in largest if gib >= 0.05)
        limits = f"passes of {self.tokens:,} tokens"
        if not self.tokens:
            limits = f"{self.requests} responses at once"
        if self.kv_tokens:
            limits += f" in a cache of {self.kv_tokens:,} tokens"
        return f"{self.situation} {self.total_gib:.1f}: {taken}; {limits}"


@dataclass(frozen=True)
class _Case:
    """The question that a budget answers: a situation of a setup on GPUs of `card_gib` each."""

    setup: Setup
    runtime: Runtime
    card_gib: float
    situation: Situation
    on: Gpus
    rank: int = 0

    @property
    def samples(self) -> list[Decoder]:
        """The models that sample."""
        models: list[Model] = [self.setup.student]
        if self.situation == "blending":
            models = [self.setup.student, self.setup.teacher]
        elif self.situation == "answering":
            models = [self.setup.teacher]
        return [decoder(model, self.setup) for model in models]

    @property
    def response_limit(self) -> int:
        """Tokens of the longest response."""
        if self.situation == "evaluating":
            return self.setup.evaluation.max_response_tokens
        return self.setup.training.max_response_tokens

    def left_bytes(self, parts: Mapping[str, float]) -> float:
        """The memory that `parts` leave on all GPUs of the role together."""
        return (self.card_gib - sum(parts.values())) * GIB * self.on.count

    def others(self) -> dict[str, float]:
        """Contexts, margin, and memory that other roles keep on the GPU."""
        pooled = is_pooled(self.setup)
        alone = self.situation == "evaluating" or self.on.apart
        # Roles on one GPU run in up to two processes, and a pool has its own beside them.
        processes = (1 if alone else 2) + pooled
        parts = {"contexts": CONTEXT_GIB * processes, "margin": MARGIN_SHARE * self.card_gib}
        if alone:
            return parts
        if self.situation in ("decoding", "scoring", "learning"):
            parts["teacher"] = self.weights_gib(decoder(self.setup.teacher, self.setup))
        if self.situation in ("scoring", "learning"):
            parts["student"] = self.weights_gib(decoder(self.setup.student, self.setup))
            # A pool's captured graphs stay while the roles beside it work.
            parts["student"] += graphs_gib(self.setup, REQUESTS) if pooled else 0.0
        return parts

    def weights_gib(self, *models: Decoder) -> float:
        """Weights on each of the role's GPUs."""
        return sum(model.weight_bytes for model in models) / GIB / self.on.count

    def too_small(self, needed_gib: float) -> TooSmall:
        """The error of a card with less than `needed_gib`, with its remedies."""
        each = "" if self.on.count == 1 else f" on each of {self.on.count} GPUs"
        work = "for one sequence of full length"
        remedy = "fewer prompt or response tokens"
        match self.situation:
            case "blending":
                work += " while blending"
            case "learning":
                work = "while the student learns"
                remedy = "a trainer over several GPUs, or a smaller pair"
            case "scoring":
                work = "while the teacher scores"
                remedy = "a trainer over several GPUs, or a smaller pair"
        return TooSmall(
            f"GPU memory: {self.card_gib:.1f} GiB: expected at least {needed_gib:.1f} GiB{each} "
            f"{work} ({self.setup.title}): a larger GPU, {remedy}",
            needed_gib,
        )


def budget(
    setup: Setup,
    runtime: Runtime,
    card_gib: float,
    situation: Situation,
    on: Gpus = ONE_GPU,
    max_tokens: int | None = None,
    rank: int = 0,
) -> Budget:
    """Compute the budget of a situation's engine on each of its GPUs of `card_gib`.

    `max_tokens` replaces the response limit of training or evaluation. A learner of adapters has a
    `rank`. Raises UserError if one sequence of full length does not fit.
    """
    case = _Case(setup, runtime, card_gib, situation, on, rank)
    if situation in ("scoring", "learning"):
        return _passes(case)
    context = setup.training.max_prompt_tokens + (max_tokens or case.response_limit)
    return _pool(case, context) if is_pooled(setup) else _batch(case, context)


def is_pooled(setup: Setup) -> bool:
    """Whether the setup's sampler keeps its KV cache as a token pool, in its own processes."""
    return ENGINES[setup.engine.sampler].pooled


# --- sampling ---


def _pool(case: _Case, context: int) -> Budget:
    """A serving engine's pool: all memory left by other parts, as far as requests can use it."""
    blending = case.situation == "blending"
    setup = case.setup
    samples = case.samples
    most = blending_requests(setup) if blending else REQUESTS
    requests = min(most, case.runtime.rollout_batch or most)
    parts = case.others()
    parts["weights"] = case.weights_gib(*samples)
    parts["attention"] = ATTENTION_GIB
    parts["requests"] = 4 * (requests + 1) * (context + RESERVED_SLOTS) / GIB  # table of slots
    if blending:
        parts["prefill"] = max(prefill_gib(model, PREFILLED_BY_TWO) for model in samples)
        parts["round"] = blended_round_gib(setup, requests)
    else:
        parts["graphs"] = graphs_gib(setup, requests)
        parts["prefill"] = prefill_gib(samples[0], PREFILLED)
        parts["sampler"] = sampler_gib(setup.vocabulary.size, requests)
    of_token = sum(model.kv_bytes for model in samples)
    slots = context + (RESERVED_SLOTS if blending else 0)
    # More tokens than all requests can fill would hold memory that nothing uses.
    tokens = min(int(case.left_bytes(parts) // of_token), requests * slots)
    if tokens < slots:
        raise case.too_small(sum(parts.values()) + slots * of_token / GIB / case.on.count)
    parts["KV cache"] = tokens * of_token / GIB / case.on.count
    return Budget(case.situation, case.card_gib, parts, kv_tokens=tokens, requests=requests)


def _batch(case: _Case, context: int) -> Budget:
    """The torch engine's largest decoding batch of full-length rows, or the configured batch."""
    blending = case.situation == "blending"
    samples = case.samples
    parts = case.others()
    parts["weights"] = case.weights_gib(*samples)
    if blending:
        parts["round"] = DRAFT_VALUES * DRAFT_BYTES / GIB
    slots = slots_of(context, LONGEST_ROUND if blending else 1)
    of_token = sum(model.kv_bytes for model in samples)
    # Under a mask, attention repeats keys and values for each query head, one layer at a time.
    repeated = max(model.kv_bytes / model.layers * model.head_groups for model in samples)
    of_row = slots * (of_token + repeated)
    if not blending:  # a blended round's logits are a part of their own, whatever the rows
        of_row += case.setup.vocabulary.size * PLAIN_BYTES
    rows = case.runtime.rollout_batch or int(case.left_bytes(parts) // of_row)
    if rows < 1:
        raise case.too_small(sum(parts.values()) + of_row / GIB / case.on.count)
    parts["KV cache"] = rows * slots * of_token / GIB / case.on.count
    parts["step"] = rows * (of_row - slots * of_token) / GIB / case.on.count
    return Budget(case.situation, case.card_gib, parts, kv_tokens=rows * slots, requests=rows)


def slots_of(length: int, drafted: int) -> int:
    """Most cache slots of a row of `length` tokens in the torch engine, for γ = `drafted`."""
    if drafted == 1:
        return length  # a single draft that is rejected leaves no slot behind
    return math.ceil(length * (1 + SPARE_SLOTS)) + drafted


def blending_requests(setup: Setup) -> int:
    """Requests that a blending engine runs at once; a longest round's distributions limit them."""
    return max(1, min(REQUESTS, ROUND_VALUES // (LONGEST_ROUND * setup.vocabulary.size)))


def longest_round(setup: Setup, rows: int) -> int:
    """The largest γ at which the torch engine judges a round of `rows` rows at once."""
    return max(1, DRAFT_VALUES // (rows * setup.vocabulary.size))


def graphs_gib(setup: Setup, requests: int) -> float:
    """CUDA graphs of decode steps up to a batch of `requests`, with their logits."""
    return requests * (GRAPH_BYTES + LOGIT_BYTES * setup.vocabulary.size) / GIB


def prefill_gib(model: Decoder, tokens: int) -> float:
    """Activations of one layer's MLP, a forward pass's maximum (`sglang/srt/models/qwen2.py`)."""
    return tokens * (3 * model.hidden + 3 * model.ffn) * model.value_bytes / GIB


def sampler_gib(vocabulary: int, requests: int) -> float:
    """Temporaries of our sampler in a serving engine; it processes a batch in parts."""
    return min(SAMPLED_AT_ONCE, requests * vocabulary) * SAMPLER_BYTES / GIB


def blended_round_gib(setup: Setup, requests: int) -> float:
    """A blending engine's longest round: student distributions, uniforms, verdict on a part."""
    vocabulary = setup.vocabulary.size
    length = setup.training.max_response_tokens
    values = requests * LONGEST_ROUND * vocabulary
    # A part has at least one request, however large its distributions.
    judged = min(values, max(JUDGED_AT_ONCE, LONGEST_ROUND * vocabulary))
    step = requests * vocabulary * (LOGIT_BYTES + 12)
    uniforms = 2 * 3 * 8 * requests * length  # on each request, and in the table of the batch
    return (4 * values + judged * JUDGED_BYTES + step + uniforms) / GIB


# --- scoring and learning ---


def _passes(case: _Case) -> Budget:
    """Passes over the tokens that fit, or the configured number, and at least one full row."""
    setup = case.setup
    parts = case.others()
    if case.situation == "learning":
        for name, gib in memory.learner_parts(setup, case.rank).items():
            parts[name] = gib / case.on.count
        parts["loss"] = loss_gib(setup)
        of_token = learned_token_bytes(setup)
    else:
        if case.on.apart:
            parts["weights"] = case.weights_gib(decoder(setup.teacher, setup))
        logits = min(SCORED_AT_ONCE, MOST_TOKENS * setup.vocabulary.size)
        parts["head"] = logits * SCORED_BYTES / GIB
        of_token = scored_token_bytes(setup)
    longest = setup.training.max_prompt_tokens + setup.training.max_response_tokens
    fixed = sum(parts.values())
    fitting = int((case.card_gib - fixed) * GIB // of_token)
    if fitting < longest:
        raise case.too_small(fixed + longest * of_token / GIB)
    # A pass takes whole rows, so that a configured number below the longest row cannot be kept.
    tokens = min(fitting, max(MOST_TOKENS, longest))
    if case.runtime.micro_batch_tokens is not None:
        tokens = max(longest, case.runtime.micro_batch_tokens)
    parts["activations"] = tokens * of_token / GIB
    return Budget(case.situation, case.card_gib, parts, tokens=tokens)


def learned_token_bytes(setup: Setup) -> int:
    """Bytes per token of a micro-batch while the student learns with checkpointed layers.

    Each layer's input is kept: the residual stream, in float32. One layer at a time is recomputed
    with its gradients; the factors of its widths were counted and rounded up.
    """
    shape = setup.student.shape
    projected = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    kept = 4 * shape.layers * shape.hidden
    return kept + 24 * projected + 48 * shape.hidden + 36 * shape.ffn


def scored_token_bytes(setup: Setup) -> int:
    """Bytes per token while the teacher scores: a layer's MLP, residual and last hidden states."""
    shape = setup.teacher.shape
    return BYTES[setup.engine.dtype] * (3 * shape.ffn + 6 * shape.hidden)


def loss_gib(setup: Setup) -> float:
    """The loss on hidden states: chunks, three float32 copies of the head and one for computing."""
    head = setup.vocabulary.size * setup.student.shape.hidden
    return (3 * 4 + 2) * head / GIB + LOSS_CHUNKS_GIB
