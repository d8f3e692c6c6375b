"""`make bench`: the prices of blending, of the objective and of the solver, as ratios measured in one run.

Prints a table and writes `bench.json` (name → number). Ratios compare variants on this machine at this time; run it on
an idle machine.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import Qwen3Config, Qwen3ForCausalLM

from orchestrator.batch import Request, Rollouts
from orchestrator.engines.causal import CausalModel, Owner
from orchestrator.engines.torch_rollout import Decoding, generate
from orchestrator.engines.torch_scoring import score
from orchestrator.policy import speculation, trust_region
from orchestrator.policy.behavior import Student, TrustRegion
from orchestrator.policy.randomness import SequenceKey
from orchestrator.policy.vocabulary import TokenSpace
from tests.benchmarks.objective_variants import VARIANTS

EPSILON, BATCH, NEW_TOKENS, PROMPT, TOP_K = 0.01, 16, 128, 32, 16
VOCABULARY = 4096
QWEN_VOCABULARY = 151_936
REPEATS = 3
TARGETS = {
    "blend_vs_vanilla": 1.4,
    "blend_vs_lockstep": 0.8,
    "rounds_per_token": 0.25,
    "objective_memory": 0.05,
    "objective_time": 0.1,
    "chunked_memory": 0.15,
    "chunked_time": 1.3,
    "solver_vs_bisection": 0.25,
    "solver_share": 0.05,
}


def main() -> None:
    torch.set_num_threads(2)
    results = decoding_ratios() | solver_ratio() | objective_ratios()
    table = Table(title=f"{platform.processor() or platform.machine()}, 2 threads, torch {torch.__version__}")
    for heading in ("name", "measured", "target"):
        table.add_column(heading, justify="left" if heading == "name" else "right")
    for name, value in results.items():
        target = f"≤ {TARGETS[name]:g}" if name in TARGETS else ""
        table.add_row(name, f"{value:.3f}", target)
    Console().print(table)
    Path("bench.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def seconds(run: Callable[[], object]) -> float:
    """Median of a few runs after one to warm up."""
    run()
    taken = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def decoding_ratios() -> dict[str, float]:
    """Blended rollouts against vanilla ones with batched scoring, and against lockstep; random weights."""
    student, teacher = model(2, 192, "student", 0), model(8, 256, "teacher", 1)
    ratio = pass_seconds(teacher) / pass_seconds(student)
    gamma = speculation.draft_length(speculation.least_acceptance(EPSILON), ratio)
    requests = [Request(tuple(range(1, PROMPT + 1)), SequenceKey(0, 0, 0, row, 0)) for row in range(BATCH)]

    def blended(length: int) -> Rollouts:
        return generate(student, teacher, requests, TrustRegion(EPSILON), Decoding(NEW_TOKENS, TOP_K, length))

    def vanilla() -> None:
        rollouts = generate(student, None, requests, Student(), Decoding(NEW_TOKENS, TOP_K))
        score(teacher, rollouts, 16384)

    rollouts, blend = blended(gamma), seconds(lambda: blended(gamma))
    return {
        "teacher_pass_in_student_passes": ratio,
        "draft_length": float(gamma),
        "acceptance": float(rollouts.measured["acceptance"][rollouts.mask_BT].mean()),
        "blend_vs_vanilla": blend / seconds(vanilla),
        "blend_vs_lockstep": blend / seconds(lambda: blended(1)),
        "rounds_per_token": float((rollouts.speculation["rounds"] / rollouts.lengths_B).mean()),
        "solver_share": solver_seconds(lambda: blended(gamma)) / blend,
    }


def model(layers: int, hidden: int, owner: Owner, seed: int) -> CausalModel:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        initializer_range=0.06,
        tie_word_embeddings=True,
    )
    return CausalModel(Qwen3ForCausalLM(config).eval(), TokenSpace(VOCABULARY, VOCABULARY - 2, VOCABULARY - 1), owner)


@torch.no_grad()
def pass_seconds(causal: CausalModel) -> float:
    """One decoding pass of a batch, without a cache to read."""
    ids = torch.ones(BATCH, 1, dtype=torch.long)
    return seconds(lambda: [causal.model(input_ids=ids) for _ in range(20)])


def solver_seconds(run: Callable[[], object]) -> float:
    """Time inside the solver during one run."""
    spent, solve = 0.0, trust_region.solve

    def timed(*arguments: torch.Tensor | float) -> trust_region.Solution:
        nonlocal spent
        started = time.perf_counter()
        result = solve(*arguments)  # type: ignore[arg-type]
        spent += time.perf_counter() - started
        return result

    trust_region.solve = timed  # type: ignore[assignment]
    try:
        run()
    finally:
        trust_region.solve = solve
    return spent


def solver_ratio() -> dict[str, float]:
    """The solver against 40 steps of plain bisection, on rows of Qwen3's vocabulary."""
    generator = torch.Generator().manual_seed(0)
    log_p = (3 * torch.randn(BATCH, QWEN_VOCABULARY, generator=generator)).log_softmax(-1)
    log_q = (log_p + torch.randn(BATCH, QWEN_VOCABULARY, generator=generator)).log_softmax(-1)
    newton = seconds(lambda: trust_region.solve(log_p, log_q, EPSILON))
    return {"solver_vs_bisection": newton / seconds(lambda: bisection(log_p, log_q, 40))}


def bisection(log_p: torch.Tensor, log_q: torch.Tensor, steps: int) -> torch.Tensor:
    """log μ by halving the bracket; the plain method of the paper."""
    low, high, ratio = torch.zeros(len(log_p)), torch.ones(len(log_p)), log_q - log_p
    for _ in range(steps):
        middle = (low + high) / 2
        log_mu = (log_p + middle[:, None] * ratio).log_softmax(-1)
        fits = (log_mu.exp() * (log_mu - log_p)).sum(-1) <= EPSILON
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
    return (log_p + low[:, None] * ratio).log_softmax(-1)


def objective_ratios() -> dict[str, float]:
    """Each variant in a process of its own, so that peak memory is its own."""
    measured = {name: in_a_process(name) for name in VARIANTS}
    plain, plain_tail = measured["plain_renormalized"], measured["plain_tail"]
    gathered, chunked = measured["gathered_renormalized"], measured["chunked_tail"]
    return {
        "objective_memory": gathered["bytes"] / plain["bytes"],
        "objective_time": gathered["seconds"] / plain["seconds"],
        "chunked_memory": chunked["bytes"] / plain_tail["bytes"],
        "chunked_time": chunked["seconds"] / plain_tail["seconds"],
    }


def in_a_process(variant: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.objective_variants", variant]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    main()
