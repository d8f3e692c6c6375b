"""The roles of a setup on a card, each at the size that its budget grants, and what they hold of
it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from orchestrator.config import Runtime, Setup
from orchestrator.engines.budget import OTHERS, Budget, Situation, TooSmall, budget
from orchestrator.engines.memory import (
    LONGEST_ROUND,
    decoder,
    fitting_round,
    longest_round,
    slots_of,
)
from orchestrator.planning.rates import GPUS
from orchestrator.policy import laws
from orchestrator.policy.spec import Student, TrustRegion
from tests.rehearsal import roles
from tests.rehearsal.roles import Measured

# γ of blended rounds: 4 is that of wide trust regions, 6 the largest one of 256 requests.
ROUNDS = (4, 6, LONGEST_ROUND)
SMALLEST_BUDGET = 1e-3  # ε₀ of the paper's smallest trust region
RUNTIME = Runtime()
SHORT = 1024  # tokens of responses at which a learner may stay on its GPU
BY_TORCH = Runtime(logits_kernel="torch")


@dataclass(frozen=True)
class Case:
    """A role with its figures in GiB: `measured_gib` at its peak, `granted_gib` to it, of a card
    with `card_gib`.

    A role that does not fit on the card has neither, and a `refusal`.
    """

    card: str
    setup: str
    role: str
    size: str
    card_gib: float
    granted_gib: float | None = None
    measured_gib: float | None = None
    tflop: float = 0.0
    flops_of_6nd: float | None = None  # arithmetic ÷ (6 × parameters × tokens)
    reads: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    refusal: str = ""

    @property
    def fits(self) -> bool:
        """Whether the role stays within its budget, or is refused before it starts."""
        if self.granted_gib is None or self.measured_gib is None:
            return bool(self.refusal)
        return self.measured_gib <= self.granted_gib

    def __str__(self) -> str:
        where = f"{self.card:<10} {self.setup:<11} {self.role:<17} {self.size:<32}"
        if self.granted_gib is None:
            return f"{where} refused: {self.refusal}"
        verdict = "" if self.fits else "   DOES NOT FIT"
        more = "" if self.flops_of_6nd is None else f"  {self.flops_of_6nd:.2f} × 6ND"
        reads = f"  {sum(self.reads.values())} reads"
        return (
            f"{where} {self.measured_gib:6.2f} of {self.granted_gib:6.2f} GiB{more}{reads}{verdict}"
        )


def rehearse(name: str, setup: Setup, card: str) -> Iterator[Case]:
    """All roles of a trial and of an evaluator, on SGLang and on the torch engine."""
    # A pass of the solver holds what every other one holds, and rows that do not exist are never
    # done.
    laws._ITERATIONS = 2
    on_torch = replace(setup, engine=replace(setup.engine, sampler="torch"))
    on_sglang = replace(setup, engine=replace(setup.engine, sampler="sglang"))
    again = replace(RUNTIME, checkpointing=True)
    yield _case(name, on_sglang, card, "learning", "learning", _learning)
    yield _case(name, on_sglang, card, "learning again", "learning", _learning, again)
    short = replace(on_sglang, training=replace(setup.training, max_response_tokens=SHORT))
    if _stays(short, card):
        yield _case(name, short, card, "learning, staying", "learning", _learning)
    yield _case(name, on_sglang, card, "scoring", "scoring", _scoring)
    yield _case(name, on_sglang, card, "scoring, by torch", "scoring", _scoring_by_torch, BY_TORCH)
    yield _case(name, on_torch, card, "torch, alone", "decoding", _decoding)
    yield _case(name, on_torch, card, "torch, blending", "blending", _blending)
    yield _case(name, on_sglang, card, "SGLang's sampler", "evaluating", _sampler)
    yield _case(
        name, on_sglang, card, "sampler, by torch", "evaluating", _sampler_by_torch, BY_TORCH
    )
    for drafted in ROUNDS:
        judging = functools.partial(_judging, drafted)
        yield _case(name, on_sglang, card, f"SGLang, γ = {drafted}", "blending", judging)


Role = Callable[[Setup, Budget], tuple[str, float, Measured]]  # size in words, GiB granted, figures


def _case(
    name: str,
    setup: Setup,
    card: str,
    role: str,
    situation: Situation,
    run: Role,
    runtime: Runtime = RUNTIME,
) -> Case:
    gib = GPUS[card].gib
    try:
        granted = budget(setup, runtime, gib, situation)
    except TooSmall as error:
        return Case(card, name, role, "", gib, refusal=str(error))
    size, granted_gib, measured = run(setup, granted)
    learned = None
    if situation == "learning":
        tokens = 2 * granted.tokens // _longest(setup) * _longest(setup)
        learned = measured.tflop * 1e12 / (6 * decoder(setup.student, setup).parameters * tokens)
    return Case(
        card=card,
        setup=name,
        role=role,
        size=size,
        card_gib=gib,
        granted_gib=granted_gib,
        measured_gib=measured.peak_gib,
        tflop=measured.tflop,
        flops_of_6nd=learned,
        reads=measured.reads,
        seconds=measured.seconds,
    )


def _stays(setup: Setup, card: str) -> bool:
    try:
        return budget(setup, RUNTIME, GPUS[card].gib, "learning").resident
    except TooSmall:
        return False


def _own(granted: Budget, *more: str) -> float:
    """GiB of the parts that are the role's own, and of some of the others'."""
    return sum(gib for part, gib in granted.parts.items() if part not in OTHERS or part in more)


def _longest(setup: Setup) -> int:
    return setup.training.max_prompt_tokens + setup.training.max_response_tokens


def _learning(setup: Setup, granted: Budget) -> tuple[str, float, Measured]:
    """Two micro-batches: the second one finds the gradient of the first.

    A learner that stays on its GPU takes there what it is granted in the sampler's budget, too.
    """
    length = _longest(setup)
    rows = 2 * (granted.tokens // length)
    size = f"{rows} × {length}, {granted.tokens:,} a pass"
    gib = _own(granted)
    if granted.resident:
        beside = budget(setup, RUNTIME, granted.card_gib, "decoding").parts["trainer"]
        gib, size = min(gib, beside), size + ", stays"
    checkpointing = granted.checkpointing
    measured = roles.learning(setup, granted.tokens, rows, length, checkpointing=checkpointing)
    return size, gib, measured


def _scoring(setup: Setup, granted: Budget, kernel: bool = True) -> tuple[str, float, Measured]:
    length = _longest(setup)
    rows = granted.tokens // length
    return (
        f"{rows} × {length}",
        _own(granted, "teacher"),
        roles.scoring(setup, granted.tokens, rows, length, kernel),
    )


def _scoring_by_torch(setup: Setup, granted: Budget) -> tuple[str, float, Measured]:
    return _scoring(setup, granted, kernel=False)


def _decoding(setup: Setup, granted: Budget) -> tuple[str, float, Measured]:
    length, rows = _longest(setup), granted.requests
    return f"{rows} × {length}", _own(granted), roles.decoding(setup, rows, length, Student())


def _blending(setup: Setup, granted: Budget) -> tuple[str, float, Measured]:
    length, rows = _longest(setup), granted.requests
    drafted = longest_round(setup, rows)
    behavior = TrustRegion(SMALLEST_BUDGET)
    size = f"{rows} × {length}, γ {drafted}, {slots_of(length, drafted):,} slots"
    return size, _own(granted), roles.decoding(setup, rows, length, behavior, drafted)


def _sampler(setup: Setup, granted: Budget, kernel: bool = True) -> tuple[str, float, Measured]:
    logits = roles.logits_gib(setup, granted.requests)
    return (
        f"{granted.requests} rows",
        granted.parts["sampler"] + logits,
        roles.sampler(setup, granted.requests, kernel),
    )


def _sampler_by_torch(setup: Setup, granted: Budget) -> tuple[str, float, Measured]:
    return _sampler(setup, granted, kernel=False)


def _judging(drafted: int, setup: Setup, granted: Budget) -> tuple[str, float, Measured]:
    rows = min(granted.requests, fitting_round(setup.vocabulary.size, drafted))
    measured = roles.judging(setup, rows, drafted, TrustRegion(SMALLEST_BUDGET))
    return f"{rows} rows", granted.parts["round"], measured
