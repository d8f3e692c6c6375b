"""Each role of a trial at full size on the pretended device: what it holds, computes and reads.

Shapes: B sequences, L slots of a cache, γ drafts, V vocabulary rows, K support ids.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3Config, Qwen3ForCausalLM

from orchestrator.config import Setup
from orchestrator.engines.common.causal import CausalModel
from orchestrator.engines.common.passes import Passes, attention_for
from orchestrator.engines.common.scoring import score
from orchestrator.engines.interface import Owner
from orchestrator.engines.memory import LOGIT_BYTES
from orchestrator.engines.sglang import verdict as drawing
from orchestrator.engines.sglang.blending_rows import Order
from orchestrator.engines.sglang.process import Draw
from orchestrator.engines.sglang.verdict import Drafts, Randomness, sampled, uniforms_of, verdict
from orchestrator.engines.torch.decoding import Decoding, Stream, _Batch
from orchestrator.engines.torch.trainer import TorchTrainer
from orchestrator.pair import Model
from orchestrator.policy.randomness import Role, SequenceKey
from orchestrator.policy.spec import Behavior, Objective
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.rollouts import Request, Rollouts, TeacherScores
from tests.rehearsal.ledger import DEVICE, Ledger
from tests.rehearsal.packages import Anything

GIB = 2**30
TFLOP = 1e12
__all__ = [
    "Measured",
    "decoding",
    "judging",
    "learning",
    "logits_gib",
    "sampler",
    "scoring",
]


@dataclass
class Measured:
    """A role's figures: GiB before the work and at its peak, TFLOP, host reads by place,
    operations, seconds here.
    """

    before_gib: float = 0.0
    peak_gib: float = 0.0
    peak_at: str = ""
    tflop: float = 0.0
    reads: dict[str, int] = field(default_factory=dict)
    operations: int = 0
    seconds: float = 0.0


@contextlib.contextmanager
def pretended() -> Iterator[Ledger]:
    """A new device with nothing on it."""
    ledger = Ledger()
    with FakeTensorMode(allow_non_fake_inputs=True), ledger:
        yield ledger


@contextlib.contextmanager
def measuring(ledger: Ledger) -> Iterator[Measured]:
    """Fill in the figures of the work inside."""
    ledger.start()
    measured, begun = Measured(before_gib=ledger.live_gib), time.perf_counter()
    aten = torch.ops.aten
    products = {aten.mm: _product_flop, aten.bmm: _product_flop, aten.addmm: _added_product_flop}
    with FlopCounterMode(display=False, custom_mapping=products) as flops:
        yield measured
    measured.peak_gib, measured.peak_at = ledger.peak_gib, ledger.peak_at
    measured.tflop = flops.get_total_flops() / TFLOP
    measured.reads, measured.operations = dict(ledger.reads), ledger.operations
    measured.seconds = time.perf_counter() - begun


def _product_flop(left: Sequence[int], right: Sequence[int], *_: Any, **__: Any) -> int:
    """Of (…, m, k) by (…, k, n); torch's own count stumbles over products with a dtype of their
    own.
    """
    return 2 * math.prod(left) * right[-1]


def _added_product_flop(
    _: Sequence[int], left: Sequence[int], right: Sequence[int], *__: Any, **___: Any
) -> int:
    return _product_flop(left, right)


def model_of(model: Model, setup: Setup, owner: Owner, dtype: torch.dtype) -> CausalModel:
    """A model of a setup's shape without weights, as `load_model` opens it on a GPU."""
    shape = model.shape
    config = Qwen3Config(
        vocab_size=setup.vocabulary.size,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=40960,
    )
    config._attn_implementation = attention_for(torch.device(DEVICE))
    with _disable_current_modes(), torch.device("meta"):
        empty: Any = Qwen3ForCausalLM(config)
    opened = empty.to(dtype).to_empty(device=DEVICE).eval()
    opened.tie_weights()
    return CausalModel(opened, _space(setup), owner)


def full_rollouts(setup: Setup, rows: int, length: int) -> Rollouts:
    """Finished rollouts of `rows` sequences of `length` tokens each, prompt and response."""
    prompt = min(setup.training.max_prompt_tokens, length // 4)
    shape = (rows, length - prompt)
    nothing = torch.zeros(shape)
    with _disable_current_modes():
        tokens, ends = torch.full(shape, 5), torch.full((rows,), shape[1])
        return Rollouts(
            requests=[Request((5,) * prompt, SequenceKey(0, 0, 0, row, 0)) for row in range(rows)],
            tokens_BT=tokens,
            lengths_B=ends,
            truncated_B=torch.ones(rows, dtype=torch.bool),
            student_BT=nothing,
            behavior_BT=nothing,
            support_ids_BTK=torch.zeros(*shape, setup.training.top_k, dtype=torch.long),
        )


def scores_of(rollouts: Rollouts) -> TeacherScores:
    """The teacher's scores of such rollouts."""
    with _disable_current_modes():
        shape = rollouts.support_ids_BTK.shape
        return TeacherScores(torch.zeros(shape), *(torch.zeros(shape[:2]) for _ in range(3)))


def learning(
    setup: Setup,
    tokens: int,
    rows: int,
    length: int,
    objective: str = "renormalized",
    checkpointing: bool = True,
) -> Measured:
    """One update of the torch trainer, after a first one that made its moments, with its state on
    the device. Layers are computed again in the backward pass if `checkpointing`.
    """
    with pretended() as ledger:
        student = model_of(setup.student, setup, "student", torch.float32)
        goal = Objective(objective)  # pyright: ignore[reportArgumentType]
        rollouts = full_rollouts(setup, rows, length)
        scores = None if objective == "nll" else scores_of(rollouts)
        passes = Passes.on(torch.device(DEVICE), torch.bfloat16, checkpointing)
        trainer = TorchTrainer(
            student, setup.training.optimizer, tokens, torch.bfloat16, steps=400, passes=passes
        )
        for parameter in trainer._parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        trainer._adamw.step()
        trainer._adamw.zero_grad(set_to_none=True)
        with measuring(ledger) as measured:
            trainer.step(rollouts, scores, goal, 0)
        return measured


def scoring(setup: Setup, tokens: int, rows: int, length: int, kernel: bool) -> Measured:
    """The teacher's statistics of finished rollouts."""
    with pretended() as ledger:
        teacher = model_of(setup.teacher, setup, "teacher", torch.bfloat16)
        rollouts = full_rollouts(setup, rows, length)
        _replace_triton()
        with measuring(ledger) as measured:
            score(teacher, rollouts, tokens, kernel=kernel)
        return measured


def decoding(
    setup: Setup, rows: int, length: int, behavior: Behavior, drafted: int = 1
) -> Measured:
    """One round of the torch engine, its last: B = `rows` sequences whose caches have `length`
    slots each.

    Before it, the models are there.
    """
    with pretended() as ledger, torch.no_grad():
        student = model_of(setup.student, setup, "student", torch.bfloat16)
        teacher = None
        if behavior.needs_teacher:
            teacher = model_of(setup.teacher, setup, "teacher", torch.bfloat16)
        prompt = setup.training.max_prompt_tokens
        asked = [Request((5,) * prompt, SequenceKey(0, 0, 0, row, 0)) for row in range(rows)]
        decoding = Decoding(length - prompt, setup.training.top_k, drafted)
        with measuring(ledger) as measured:
            batch = _Batch(student, teacher, asked, decoding)
            for stream in (batch._student, batch._teacher):
                if stream is not None:
                    _fill(stream, length - drafted)
            round_of = batch.blended_round if behavior.needs_teacher else batch.student_round
            batch.advance(round_of(behavior))
        return measured


def _fill(stream: Stream, slots: int) -> None:
    """Let a stream have so many slots in use, as after that many tokens."""
    fresh = stream._live.new_ones(stream._live.shape[0], slots)
    for layer in stream._cache._slots:
        layer._use(slots)
    stream._live = fresh


def sampler(setup: Setup, requests: int, kernel: bool) -> Measured:
    """SGLang's sampler on a batch of the student's logits, which SGLang gives as a float32 copy of
    bfloat16. With the `kernel` its tensors are there, and no kernel is started.
    """
    if kernel:
        _replace_triton()
    os.environ[drawing.KERNEL] = "1" if kernel else ""
    with pretended() as ledger, torch.no_grad():
        drawing._space[:] = [(_space(setup), "student")]
        with measuring(ledger) as measured:
            raw = torch.empty(requests, setup.vocabulary.size, dtype=torch.bfloat16, device=DEVICE)
            logits = raw.float()
            draw = Draw(seed=1, prompt=5, support=setup.training.top_k).as_parameters()
            positions = torch.zeros(requests, dtype=torch.long, device=DEVICE)
            drawing.draw_tokens(logits, [draw] * requests, positions)
        return measured


class _NotStarted:
    """A kernel that does nothing and keeps nothing, whatever it is decorated or started with."""

    def __call__(self, *_: Any, **__: Any) -> _NotStarted:
        return self

    def __getitem__(self, grid: Any) -> _NotStarted:
        return self


def _replace_triton() -> None:
    """Import the kernels without Triton, which CPUs lack by default; starting one does nothing."""
    name = "orchestrator.engines.common.vocabulary_kernels"
    if name in sys.modules:
        return
    triton: Any = Anything("triton")
    triton.jit = lambda *_, **__: _NotStarted()
    triton.cdiv = lambda a, b: -(-a // b)
    triton.next_power_of_2 = lambda number: 1 << (number - 1).bit_length()
    replaced = {"triton": triton, "triton.language": triton.language}
    there = {module: sys.modules.pop(module) for module in replaced if module in sys.modules}
    sys.modules |= replaced
    importlib.import_module(name)
    for module in replaced:
        del sys.modules[module]
    sys.modules |= there


def judging(setup: Setup, requests: int, drafted: int, behavior: Behavior) -> Measured:
    """A round of the blending engine after the passes of both models: the student's distributions
    and the verdict.
    """
    size, hidden = setup.vocabulary.size, setup.teacher.shape.hidden
    space = _space(setup)
    key = SequenceKey(0, 0, 0, 0, 0)
    order = Order(
        behavior, key, space, setup.training.max_response_tokens, setup.training.top_k, drafted
    )
    with pretended() as ledger, torch.no_grad():
        device = torch.device(DEVICE)
        with measuring(ledger) as measured:
            tables = [uniforms_of(order, device) for _ in range(requests)]
            draws = Randomness().draws(tables, [0] * requests, drafted)
            log_p = torch.empty(requests, drafted, size, device=device)
            tokens = torch.zeros(requests, dtype=torch.long, device=device)
            for step in range(drafted):
                raw = torch.empty(requests, size, dtype=torch.bfloat16, device=device)
                log_p[:, step] = space.student_log_prob(raw.float())
                tokens = sampled(log_p[:, step], draws[:, Role.DRAFT, step], None)
            states = torch.empty(requests, drafted, hidden, dtype=torch.bfloat16, device=device)
            head = torch.empty(0, dtype=torch.bfloat16, device=device)

            def log_q(part: torch.Tensor) -> torch.Tensor:
                read = head.new_empty(len(states[part]), drafted, size)
                return space.teacher_log_prob(read.float())

            proposed = tokens[:, None].expand(-1, drafted).contiguous()
            verdict([order] * requests, Drafts(proposed, log_p, log_q, draws, None))
        return measured


def logits_gib(setup: Setup, requests: int) -> float:
    """Logits of a batch, which SGLang gives and a budget counts with its CUDA graphs."""
    return requests * setup.vocabulary.size * LOGIT_BYTES / GIB


def _space(setup: Setup) -> TokenSpace:
    return TokenSpace.of(setup)
