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
so do captured CUDA graphs. Where the card holds all of it beside a cache of at least KEPT_SHARE of
its requests, nothing is moved (`Budget.resident`): the learner's memory is then a part of every
other role's budget, and the sampler's of the learner's. Roles with their own GPUs (`apart`) hold
only their own memory. The G GPUs of a role divide weights, learner state and caches; each has its
own contexts, workspace and margin. New weights may come to SGLang through a copy on the GPU that it
shares with the learner. The copy exists while they are loaded, in place of the released KV cache or
of the passes of a learner that stays; without room for it they come through the host.

`engines.device.granted` asks for the budget of its process, with the card's memory times the
placement's `gpu_share`. The torch engine reads the result itself. For SGLang,
`settings` and `blending_settings` of `sglang.engine` carry it to the engine's process,
where `sglang.private._arguments` makes it SGLang's `max_total_tokens` and `max_running_requests`.

`memory` has the sizes that were counted on a pretended GPU or read in a library's source. Constants
below are assumptions where they say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from orchestrator.config import Placement, Runtime, Setup
from orchestrator.engines import catalog, memory
from orchestrator.engines.catalog import ENGINES
from orchestrator.engines.memory import GIB, ONE_GPU, Decoder, Gpus, Situation, decoder
from orchestrator.errors import UserError
from orchestrator.pair import Model

# Parts outside the engine's own memory; `trainer` is a learner that stays on the GPU.
OTHERS = ("contexts", "margin", "teacher", "student", "trainer", "scoring")

# --- any process ---
# A CUDA context with cuBLAS workspaces, for each process (assumption: 0.4 to 0.6 on an H100).
CONTEXT_GIB = 0.5
MARGIN_SHARE = 0.03  # of the card: fragments that allocators cannot use (assumption)

# --- SGLang ---
# Workspace of flashinfer's and TensorRT-LLM's kernels; FlashAttention 3 takes next to none.
ATTENTION_GIB = 0.5
# --- passes ---
# A checkpointed layer is computed twice forward and once backward, which costs as much as two.
RECOMPUTING = 4 / 3
# The operations of a pass, some 6,000 (counted) of 5 µs each at 250 TFLOP/s (assumptions): work
# that smaller passes do more often.
PASS_FLOP = 7e12
# Of the full length of all requests: the least cache beside a learner that stays. Responses that
# grow from nothing to full length hold half of it on average; SGLang sets requests back otherwise.
KEPT_SHARE = 0.5
# A learner of 0.6 billion parameters that moves takes 2 s of each step for it, with the cache's
# memory, beside 6.5 s of learning (estimated): it stays unless its passes become slower than that.
MOVING = 1.3


# Situation → those in which a trial samples that comes into it, unless the caller knows better.
SAMPLING: Mapping[Situation, tuple[Situation, ...]] = {
    "decoding": ("decoding",),
    "blending": ("blending", "decoding"),
    "evaluating": ("evaluating",),
    "answering": ("answering",),
    "scoring": ("decoding",),
    "learning": ("decoding",),
}


class TooSmall(UserError):
    """A GPU is too small for one full-length sequence or the learner, which take `needed_gib`."""

    def __init__(self, message: str, needed_gib: float):
        super().__init__(message)
        self.needed_gib = needed_gib


@dataclass(frozen=True)
class Budget:
    """GiB of one GPU by `parts`, and limits of its engine; `total_gib` never exceeds `card_gib`.

    `kv_tokens` fit into the KV caches (of both models while blending) over all GPUs of the role.
    `requests` run at once. One pass of scoring or learning takes `tokens`. A learner recomputes its
    layers in the backward pass if `checkpointing`. All roles keep their memory if `resident`.
    """

    situation: Situation
    card_gib: float
    parts: Mapping[str, float] = field(default_factory=dict)
    kv_tokens: int = 0
    requests: int = 0
    tokens: int = 0
    checkpointing: bool = False
    resident: bool = False

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
        if self.checkpointing:
            limits += ", layers computed twice"
        if not self.tokens:
            limits = f"{self.requests} responses at once"
        if self.kv_tokens:
            limits += f" in a cache of {self.kv_tokens:,} tokens"
        if self.resident:
            limits += "; the learner stays"
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
    sampling: tuple[Situation, ...] = ()

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

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence in training."""
        return self.setup.training.max_prompt_tokens + self.setup.training.max_response_tokens

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
            parts["student"] += memory.graphs_gib(self.setup, memory.REQUESTS) if pooled else 0.0
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
    sampling: tuple[Situation, ...] = (),
) -> Budget:
    """Compute the budget of a situation's engine on each of its GPUs of `card_gib`.

    `max_tokens` replaces the response limit of training or evaluation. A learner of adapters has a
    `rank`. `sampling` are the situations in which the trial samples, by default those of a trial
    that comes into this one. Raises UserError if one sequence of full length does not fit.
    """
    case = _Case(setup, runtime, card_gib, situation, on, rank, sampling or SAMPLING[situation])
    stays = _resident(case)
    if situation in ("scoring", "learning"):
        return _passes(case, stays)
    context = setup.training.max_prompt_tokens + (max_tokens or case.response_limit)
    return _pool(case, context, stays) if is_pooled(setup) else _batch(case, context)


def scores_beside(setup: Setup, runtime: Runtime, placement: Placement) -> bool:
    """Whether finished rollouts of a trial are scored while others are sampled.

    The sampler must work on in a process of its own, and the process that calls it has the teacher.
    """
    own_process = is_pooled(setup) and setup.engine.trainer == "torch"
    return runtime.score_beside and own_process and placement.mode != "split"


def is_pooled(setup: Setup) -> bool:
    """Whether the setup's sampler keeps its KV cache as a token pool, in its own processes."""
    return ENGINES[setup.engine.sampler].pooled


# --- sampling ---


@dataclass(frozen=True)
class _Serving:
    """A serving engine's `parts` but its KV cache, its requests, and slots of `slot_bytes` each."""

    parts: dict[str, float]
    requests: int
    slots: int
    slot_bytes: int


def _serving(case: _Case, context: int) -> _Serving:
    """The engine of a sampling situation, for sequences of `context` tokens."""
    blending = case.situation == "blending"
    setup = case.setup
    samples = case.samples
    most = memory.blending_requests(setup) if blending else memory.REQUESTS
    requests = min(most, case.runtime.rollout_batch or most)
    parts = {"weights": case.weights_gib(*samples), "attention": ATTENTION_GIB}
    # The table of slots.
    parts["requests"] = 4 * (requests + 1) * (context + memory.RESERVED_SLOTS) / GIB
    if blending:
        parts["prefill"] = max(
            memory.prefill_gib(model, memory.PREFILLED_BY_TWO) for model in samples
        )
        parts["round"] = memory.blended_round_gib(setup, requests)
    else:
        parts["graphs"] = memory.graphs_gib(setup, requests)
        parts["prefill"] = memory.prefill_gib(samples[0], memory.PREFILLED)
        kernel = memory.by_kernel(case.runtime, setup) and case.on.count == 1
        parts["sampler"] = memory.sampler_gib(setup, requests, kernel)
    beside = scores_beside(setup, case.runtime, case.runtime.placement)
    if case.situation == "decoding" and beside and not case.on.apart:
        tokens = max(case.longest, case.runtime.micro_batch_tokens or memory.MOST_TOKENS)
        parts["scoring"] = _scored_head_gib(case) + tokens * memory.scored_token_bytes(setup) / GIB
    slots = context + (memory.RESERVED_SLOTS if blending else 0)
    return _Serving(parts, requests, slots, sum(model.kv_bytes for model in samples))


def _pool(case: _Case, context: int, stays: _Stays | None) -> Budget:
    """A serving engine's pool: all memory left by other parts, as far as requests can use it."""
    serving = _serving(case, context)
    parts = case.others() | ({"trainer": stays.gib} if stays else {}) | serving.parts
    # More tokens than all requests can fill would hold memory that nothing uses.
    most = serving.requests * serving.slots
    tokens = min(int(case.left_bytes(parts) // serving.slot_bytes), most)
    needed = serving.slots * serving.slot_bytes / GIB / case.on.count
    if tokens < serving.slots:
        raise case.too_small(sum(parts.values()) + needed)
    parts["KV cache"] = tokens * serving.slot_bytes / GIB / case.on.count
    return Budget(
        case.situation,
        case.card_gib,
        parts,
        kv_tokens=tokens,
        requests=serving.requests,
        resident=stays is not None,
    )


def _batch(case: _Case, context: int) -> Budget:
    """The torch engine's largest decoding batch of full-length rows, or the configured batch."""
    blending = case.situation == "blending"
    samples = case.samples
    parts = case.others()
    parts["weights"] = case.weights_gib(*samples)
    if blending:
        parts["round"] = memory.DRAFT_VALUES * memory.DRAFT_BYTES / GIB
    slots = memory.slots_of(context, memory.LONGEST_ROUND if blending else 1)
    of_token = sum(model.kv_bytes for model in samples)
    # Under a mask, attention repeats keys and values for each query head, one layer at a time.
    repeated = max(model.kv_bytes / model.layers * model.head_groups for model in samples)
    of_row = slots * (of_token + repeated)
    if not blending:  # a blended round's logits are a part of their own, whatever the rows
        of_row += case.setup.vocabulary.size * memory.PLAIN_BYTES
    rows = case.runtime.rollout_batch or int(case.left_bytes(parts) // of_row)
    if rows < 1:
        raise case.too_small(sum(parts.values()) + of_row / GIB / case.on.count)
    parts["KV cache"] = rows * slots * of_token / GIB / case.on.count
    parts["step"] = rows * (of_row - slots * of_token) / GIB / case.on.count
    return Budget(case.situation, case.card_gib, parts, kv_tokens=rows * slots, requests=rows)


# --- scoring and learning ---


@dataclass(frozen=True)
class _Pass:
    """A way to learn: `tokens` of one pass, and whether layers keep only their inputs."""

    tokens: int
    checkpointing: bool

    def gib(self, setup: Setup) -> float:
        """Memory that the forward pass leaves for the backward pass."""
        if self.checkpointing:
            return self.tokens * memory.learned_token_bytes(setup) / GIB
        return (self.tokens * memory.kept_token_bytes(setup) + memory.kept_bytes(setup)) / GIB

    def cost(self, setup: Setup) -> float:
        """Modelled seconds of a token, in those of its arithmetic alone."""
        launched = PASS_FLOP / (6 * decoder(setup.student, setup).parameters)
        return (RECOMPUTING if self.checkpointing else 1) * (1 + launched / self.tokens)


def _passes(case: _Case, stays: _Stays | None) -> Budget:
    """Passes over the tokens that fit, or the configured number, and at least one full row."""
    parts = case.others()
    if stays is not None:
        parts["student"] = _engine_gib(case, stays)
    if case.situation == "learning":
        return _learning(case, parts, stays)
    if stays is not None:
        parts["trainer"] = stays.beside_scoring_gib
    parts |= _reading(case)
    of_token = memory.scored_token_bytes(case.setup)
    fitting = int((case.card_gib - sum(parts.values())) * GIB // of_token)
    if fitting < case.longest:
        raise case.too_small(sum(parts.values()) + case.longest * of_token / GIB)
    tokens = _sizes(case)[0]
    if case.runtime.micro_batch_tokens is None:
        tokens = min(fitting, tokens)
    parts["activations"] = tokens * of_token / GIB
    return Budget(case.situation, case.card_gib, parts, tokens=tokens, resident=stays is not None)


def _learning(case: _Case, parts: dict[str, float], stays: _Stays | None) -> Budget:
    """Learn in the passes of a learner that stays, else in the fastest that fit."""
    setup = case.setup
    parts |= _learner_parts(case)
    chosen = stays.learning if stays else _fastest(case, case.card_gib - sum(parts.values()))
    if chosen is None:
        smallest = min(_Pass(case.longest, way).gib(setup) for way in _ways(case))
        raise case.too_small(sum(parts.values()) + smallest)
    parts["activations"] = chosen.gib(setup)
    return Budget(
        "learning",
        case.card_gib,
        parts,
        tokens=chosen.tokens,
        checkpointing=chosen.checkpointing,
        resident=stays is not None,
    )


def _ways(case: _Case) -> tuple[bool, ...]:
    """Whether layers may be checkpointed: as configured, else both if keeping them was counted."""
    if case.runtime.checkpointing is not None:
        return (case.runtime.checkpointing,)
    counted = ENGINES[case.setup.engine.trainer].resident and case.setup.engine.dtype == "bfloat16"
    return (False, True) if counted else (True,)


def _room_in_turns(case: _Case) -> float:
    """GiB for the activations of a learner that moves away while others work."""
    parts = replace(case, situation="learning").others() | _learner_parts(case)
    return case.card_gib - sum(parts.values())


def _fastest(case: _Case, room_gib: float) -> _Pass | None:
    """The passes of least modelled seconds that fit; None if a row of full length does not."""
    found: list[_Pass] = []
    ways = _ways(case)
    for way in ways:
        fitting = [
            tokens for tokens in _sizes(case) if _Pass(tokens, way).gib(case.setup) <= room_gib
        ]
        if fitting:
            found.append(_Pass(fitting[0], way))
        elif _Pass(case.longest, way).gib(case.setup) <= room_gib and way == ways[-1]:
            found.append(_Pass(_sizes(case)[0], way))  # a configured number wins
    return min(found, key=lambda each: each.cost(case.setup), default=None)


def _sizes(case: _Case) -> list[int]:
    """Tokens of a pass, largest first: the configured number, else the most and its halves.

    A pass takes whole rows, so that a configured number below the longest row cannot be kept.
    Passes that fill the card to the last row would gain a few percent.
    """
    if case.runtime.micro_batch_tokens is not None:
        return [max(case.longest, case.runtime.micro_batch_tokens)]
    sizes: list[int] = []
    tokens = memory.MOST_TOKENS
    while tokens > case.longest:
        sizes.append(tokens)
        tokens //= 2
    return [*sizes, case.longest]


def _reading(case: _Case) -> dict[str, float]:
    """GiB of scoring but its activations."""
    parts: dict[str, float] = {}
    if case.on.apart:
        parts["weights"] = case.weights_gib(decoder(case.setup.teacher, case.setup))
    parts["head"] = _scored_head_gib(case)
    return parts


def _learner_parts(case: _Case) -> dict[str, float]:
    """GiB of the learner's state, its gradient and its loss."""
    parts: dict[str, float] = {}
    for name, gib in memory.learner_parts(case.setup, case.rank).items():
        parts[name] = gib / case.on.count
    return parts | {"loss": memory.loss_gib(case.setup)}


def _scored_head_gib(case: _Case) -> float:
    """The teacher's logits that are read at once, and their temporaries."""
    logits = min(memory.SCORED_AT_ONCE, memory.MOST_TOKENS * case.setup.vocabulary.size)
    of_logit = (
        memory.LOGIT_BYTES if memory.by_kernel(case.runtime, case.setup) else memory.SCORED_BYTES
    )
    return logits * of_logit / GIB


# --- a learner that stays ---


@dataclass(frozen=True)
class _Stays:
    """A learner that keeps its memory while others use the GPU: its passes, and GiB.

    `gib` are beside an engine that samples; `beside_scoring_gib` beside the scorer's passes, which
    reuse the learner's memory in the same process.
    """

    learning: _Pass
    gib: float
    beside_scoring_gib: float


def _resident(case: _Case) -> _Stays | None:
    """The fastest learner that fits beside every engine with which the trial samples, if any does.

    Each engine's cache holds KEPT_SHARE of its requests' full length at least, and all of it where
    there is memory; of a blending engine's requests those of its longest rounds count. A learner
    that must stay (`runtime.resident`) leaves room for one request.
    """
    setup, wanted = case.setup, case.runtime.resident
    shares = not case.on.apart and case.on.count == 1 and case.situation != "evaluating"
    counted = catalog.stays(setup.engine.sampler, setup.engine.trainer)
    if wanted is False or not shares or not counted:
        return None
    passes = [_Pass(tokens, way) for tokens in _sizes(case) for way in _ways(case)]
    in_turns = _fastest(case, _room_in_turns(case))
    for each in sorted(passes, key=lambda each: each.cost(setup)):
        if not wanted and (in_turns is None or each.cost(setup) > MOVING * in_turns.cost(setup)):
            return None
        stays = _staying(case, each)
        if all(_lacking(replace(case, situation=name), stays) <= 0 for name in case.sampling):
            return stays
    if wanted:
        least = _staying(case, min(passes, key=lambda each: each.gib(setup)))
        lacking = max(_lacking(replace(case, situation=name), least) for name in case.sampling)
        raise TooSmall(
            f"runtime.resident: True: expected null or false on a GPU of {case.card_gib:.1f} GiB, "
            f"which lacks {lacking:.1f} GiB for the learner beside one request ({setup.title})",
            case.card_gib + lacking,
        )
    return None


def _staying(case: _Case, learning: _Pass) -> _Stays:
    """A learner with these passes, beside a scorer whose passes are as large as they may be."""
    learner = _learner_parts(case)
    state = learner.pop("learner") + learner.pop("gradient")
    passes = sum(learner.values()) + learning.gib(case.setup)
    tokens = _sizes(case)[0]
    scoring = sum(_reading(case).values()) + tokens * memory.scored_token_bytes(case.setup) / GIB
    if case.runtime.placement.mode == "inline":
        return _Stays(learning, state + max(passes, scoring), state)
    # A process of its own keeps what it has had.
    return _Stays(learning, state + passes + scoring, state + passes)


def _lacking(case: _Case, stays: _Stays) -> float:
    """GiB that a sampling engine lacks for a large enough cache beside a learner that stays."""
    serving = _serving(case, case.longest)
    parts = case.others() | {"trainer": stays.gib} | serving.parts
    requests = serving.requests  # a configured batch has its whole cache
    if case.runtime.resident:
        requests = 1
    elif case.runtime.rollout_batch is None:
        if case.situation == "blending":  # more of them, in short rounds, do not outweigh the moves
            requests = min(
                requests, memory.fitting_round(case.setup.vocabulary.size, memory.LONGEST_ROUND)
            )
        requests = math.ceil(KEPT_SHARE * requests)
    cache = requests * serving.slots * serving.slot_bytes
    return (cache - case.left_bytes(parts)) / GIB


def _engine_gib(case: _Case, stays: _Stays) -> float:
    """GiB of the sampling engine beside a learner that stays: of the largest one in the trial.

    Two of them hold the teacher themselves. Blended passes bring its scores, so that it is not
    there twice.
    """
    teacher = case.weights_gib(decoder(case.setup.teacher, case.setup))
    sizes: list[float] = []
    for name in case.sampling:
        granted = _pool(replace(case, situation=name), case.longest, stays)
        own = sum(gib for part, gib in granted.parts.items() if part not in OTHERS)
        sizes.append(own if name == "decoding" else own - teacher)
    return max(sizes)
