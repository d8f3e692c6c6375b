"""Blended rollouts against vanilla ones and against lockstep, on any pair of random weights and any
device.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM

from orchestrator.engines.common.causal import CausalModel
from orchestrator.engines.common.passes import attention_for
from orchestrator.engines.common.scoring import score
from orchestrator.engines.interface import Owner
from orchestrator.engines.torch.decoding import Decoding, generate
from orchestrator.models.recipes import qwen3_config
from orchestrator.pair import Shape
from orchestrator.policy import laws
from orchestrator.policy.randomness import SequenceKey
from orchestrator.policy.spec import Student, TrustRegion, draft_length, least_acceptance
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.rollouts import Request, Rollouts

EPSILON, TOP_K = 0.01, 16
CPU = torch.device("cpu")
MICRO_BATCH_TOKENS = 16_384
SAMPLES = 4  # of each prompt
PASSES = 20
PROBED_POSITIONS = 8


@dataclass(frozen=True)
class Workload:
    """A pair of models, and the prompts and lengths that they decode."""

    student: CausalModel
    teacher: CausalModel
    rows: int
    prompt: int
    new_tokens: int
    repeats: int

    @property
    def requests(self) -> list[Request]:
        """As in training: several samples of each prompt."""
        keys = [SequenceKey(0, 0, 0, *divmod(row, SAMPLES)) for row in range(self.rows)]
        return [
            Request(tuple(range(1 + key.prompt, self.prompt + 1 + key.prompt)), key) for key in keys
        ]

    def blended(self, length: int) -> Rollouts:
        """Trust-region rollouts in rounds of `length` drafts, teacher targets included."""
        decoding = Decoding(self.new_tokens, TOP_K, length)
        return generate(self.student, self.teacher, self.requests, TrustRegion(EPSILON), decoding)

    def vanilla(self) -> Rollouts:
        """Rollouts of the student alone, then scored by the teacher in batches."""
        rollouts = generate(
            self.student, None, self.requests, Student(), Decoding(self.new_tokens, TOP_K)
        )
        score(self.teacher, rollouts, MICRO_BATCH_TOKENS)
        return rollouts


def random_model(
    shape: Shape,
    vocabulary: int,
    owner: Owner,
    seed: int,
    spread: float = 0.06,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
) -> CausalModel:
    """A Qwen3 decoder of random weights, made on its device and in its dtype."""
    torch.manual_seed(seed)
    config = qwen3_config(shape, vocabulary, eos=vocabulary - 2)
    config.initializer_range = spread
    with device:
        attention = attention_for(device)
        model = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=attention
        ).eval()
    return CausalModel(model, TokenSpace(vocabulary, vocabulary - 2, vocabulary - 1), owner)


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Median of a few runs after one to warm up."""
    run()
    return statistics.median(once(run) for _ in range(repeats))


def once(run: Callable[[], object]) -> float:
    """Seconds of one run, the device's queue included."""
    synchronize()
    started = time.perf_counter()
    run()
    synchronize()
    return time.perf_counter() - started


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def ratios(load: Workload) -> dict[str, float]:
    """The prices of blending, and what they follow from."""
    cost, arithmetic = pass_costs(load)
    gamma = draft_length(least_acceptance(EPSILON), cost, arithmetic)
    rollouts = load.blended(gamma)
    blended, lockstep, vanilla = interleaved(load, gamma)
    return {
        "teacher_pass_in_student_passes": cost,
        "draft_length": float(gamma),
        "acceptance": float(rollouts.measured["acceptance"][rollouts.mask_BT].mean()),
        "blend_vs_vanilla": blended / vanilla,
        "blend_vs_lockstep": blended / lockstep,
        "rounds_per_token": float((rollouts.speculation["rounds"] / rollouts.lengths_B).mean()),
        "solver_share": solver_seconds(lambda: load.blended(gamma)) / blended,
        "vanilla_tokens_per_s": load.rows * load.new_tokens / vanilla,
        "lockstep_tokens_per_s": load.rows * load.new_tokens / lockstep,
        "blended_tokens_per_s": load.rows * load.new_tokens / blended,
    }


def interleaved(load: Workload, gamma: int) -> list[float]:
    """Median seconds of blended, lockstep and vanilla rollouts, in turns: whatever slows one slows
    all.
    """
    runs: list[Callable[[], object]] = [
        lambda: load.blended(gamma),
        lambda: load.blended(1),
        load.vanilla,
    ]
    for run in runs:
        run()
    taken = [[once(run) for run in runs] for _ in range(load.repeats)]
    return [statistics.median(column) for column in zip(*taken, strict=True)]


@torch.no_grad()
def pass_costs(load: Workload) -> tuple[float, float]:
    """A teacher pass in student passes, and what each further position adds to a pass as a share of
    it.
    """

    def cost(causal: CausalModel, positions: int) -> float:
        """Seconds of the fastest pass, since a disturbance only slows a pass."""
        ids = torch.ones(load.rows, positions, dtype=torch.long, device=causal.device)
        return min(once(lambda: causal.model(input_ids=ids)) for _ in range(PASSES))

    teacher, longer = (cost(load.teacher, positions) for positions in (1, PROBED_POSITIONS))
    slope = max(0.0, longer - teacher) / (PROBED_POSITIONS - 1)
    return teacher / cost(load.student, 1), slope / max(teacher - slope, slope)


def solver_seconds(run: Callable[[], object]) -> float:
    """Time inside the solver during one run."""
    spent, solve = 0.0, laws.solve

    def timed(log_p: torch.Tensor, log_q: torch.Tensor, epsilon: float) -> laws.Solution:
        nonlocal spent
        synchronize()
        started = time.perf_counter()
        result = solve(log_p, log_q, epsilon)
        synchronize()
        spent += time.perf_counter() - started
        return result

    laws.solve = timed
    try:
        run()
    finally:
        laws.solve = solve
    return spent
