"""`make bench`: the prices of blending, of the objective and of the solver, as ratios measured in
one run.

Prints a table and writes `bench.json` (name → number). Ratios compare variants on this machine at
this time; run it on an idle machine. With `--quickstart` (`make bench-quickstart`) the embedded
sweep is timed too: minutes.
"""

from __future__ import annotations

import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.decoding import EPSILON, Workload, once, random_model, ratios, seconds
from benchmarks.objective_variants import VARIANTS
from orchestrator.engines.common.causal import CausalModel
from orchestrator.engines.torch.decoding import Decoding, generate
from orchestrator.pair import Shape
from orchestrator.policy import laws
from orchestrator.policy.randomness import SequenceKey
from orchestrator.policy.spec import Student
from orchestrator.rollouts import Request

BATCH, REPEATS = 16, 3
ROLLOUTS = 7  # repetitions of a rollout: they are short
VOCABULARY, QWEN_VOCABULARY = 4096, 151_936
HEAD_VOCABULARY = 49_152  # a head that is most of this student's arithmetic, as in small models
STUDENT = Shape(layers=4, hidden=256, heads=4, kv_heads=2, head_dim=64, ffn=768)
TEACHER = Shape(layers=12, hidden=512, heads=8, kv_heads=4, head_dim=64, ffn=1536)
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
    "precise_head_decoding": 1.3,
    "precise_head_reading": 1.3,
}
# Other losses than the default, each ÷ the reverse KL that is computed in the same way.
OTHER_LOSSES = (
    "gathered_forward_kl",
    "gathered_jsd",
    "gathered_mixture",
    "chunked_forward_kl",
    "chunked_sampled",
)
for other in OTHER_LOSSES:
    TARGETS |= {f"{other}_memory": 1.2, f"{other}_time": 1.5}
RESULTS = Path("bench.json")


def main() -> None:
    torch.set_num_threads(2)
    results = (
        quickstart_speedup()
        if "--quickstart" in sys.argv
        else ratios(pair()) | solver_ratio() | head_ratios() | objective_ratios()
    )
    machine = platform.processor() or platform.machine()
    show(results, f"{machine}, 2 threads, torch {torch.__version__}", TARGETS)
    keep(results, RESULTS)


def keep(results: dict[str, float], path: Path) -> None:
    """Write results into a file, beside those of other calls."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(known | results, indent=2) + "\n", encoding="utf-8")


def show(results: dict[str, float], title: str, targets: Mapping[str, float]) -> None:
    """Print a table of results beside their targets."""
    table = Table(title=title)
    for heading in ("name", "measured", "target"):
        table.add_column(heading, justify="left" if heading == "name" else "right")
    for name, value in results.items():
        target = f"≤ {targets[name]:g}" if name in targets else ""
        table.add_row(name, f"{value:,.3f}", target)
    Console().print(table)


def pair() -> Workload:
    """Two decoders of which a teacher pass costs at least four student passes."""
    student = random_model(STUDENT, VOCABULARY, "student", 0)
    return Workload(
        student, random_model(TEACHER, VOCABULARY, "teacher", 1), BATCH, 32, 128, ROLLOUTS
    )


def solver_ratio() -> dict[str, float]:
    """The solver against 40 steps of plain bisection, on rows of Qwen3's vocabulary."""
    generator = torch.Generator().manual_seed(0)
    log_p = (3 * torch.randn(BATCH, QWEN_VOCABULARY, generator=generator)).log_softmax(-1)
    log_q = (log_p + torch.randn(BATCH, QWEN_VOCABULARY, generator=generator)).log_softmax(-1)
    newton = seconds(lambda: laws.solve(log_p, log_q, EPSILON), REPEATS)
    return {"solver_vs_bisection": newton / seconds(lambda: bisection(log_p, log_q, 40), REPEATS)}


def bisection(log_p: torch.Tensor, log_q: torch.Tensor, steps: int) -> torch.Tensor:
    """log μ by halving the bracket; the plain method of the paper."""
    low, high = log_p.new_zeros(len(log_p)), log_p.new_ones(len(log_p))
    ratio = log_q - log_p
    for _ in range(steps):
        middle = (low + high) / 2
        log_mu = (log_p + middle[:, None] * ratio).log_softmax(-1)
        fits = (log_mu.exp() * (log_mu - log_p)).sum(-1) <= EPSILON
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
    return (log_p + low[:, None] * ratio).log_softmax(-1)


def head_ratios() -> dict[str, float]:
    """bfloat16 passes with logits in float32 ÷ with logits in bfloat16: tokens decoded one by one,
    and prompts read at once.
    """
    precise = random_model(STUDENT, HEAD_VOCABULARY, "student", 0, dtype=torch.bfloat16)
    students = (precise, replace(precise, precise_head=False))
    requests = [Request(tuple(range(1, 33)), SequenceKey(0, 0, 0, 0, row)) for row in range(BATCH)]
    ids = torch.arange(2048).view(BATCH, 128)

    def decode(student: CausalModel) -> object:
        return generate(student, None, requests, Student(), Decoding(32, 16))

    @torch.no_grad()
    def read(student: CausalModel) -> object:
        return student.log_prob(student.head(student.hidden(ids, torch.ones_like(ids))))

    taken: dict[tuple[str, bool], list[float]] = {}
    for _ in range(ROLLOUTS + 1):  # in turns: a busy machine slows both
        for name, work in (("decoding", decode), ("reading", read)):
            for student in students:
                seconds_taken = once(lambda: work(student))  # noqa: B023 (called at once)
                taken.setdefault((name, student.precise_head), []).append(seconds_taken)
    ratios: dict[str, float] = {}
    for name in ("decoding", "reading"):
        ours, other = (statistics.median(taken[name, precise][1:]) for precise in (True, False))
        ratios[f"precise_head_{name}"] = ours / other
    return ratios


def objective_ratios() -> dict[str, float]:
    """Each variant in a process of its own, so that peak memory is its own."""
    measured = {name: in_a_process(name) for name in VARIANTS}
    plain, plain_tail = measured["plain_renormalized"], measured["plain_tail"]
    gathered, chunked = measured["gathered_renormalized"], measured["chunked_tail"]
    ratios = {
        "objective_memory": gathered["bytes"] / plain["bytes"],
        "objective_time": gathered["seconds"] / plain["seconds"],
        "chunked_memory": chunked["bytes"] / plain_tail["bytes"],
        "chunked_time": chunked["seconds"] / plain_tail["seconds"],
    }
    for name in OTHER_LOSSES:
        same_way = gathered if name.startswith("gathered") else chunked
        ratios[f"{name}_memory"] = measured[name]["bytes"] / same_way["bytes"]
        ratios[f"{name}_time"] = measured[name]["seconds"] / same_way["seconds"]
    return ratios


def in_a_process(variant: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.objective_variants", variant]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def quickstart_speedup() -> dict[str, float]:
    """The embedded sweep with one teacher pass for each token ÷ with drafts, models made
    beforehand.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        sweep_seconds(folder / "models", "training.steps=1")
        taken = []
        for length in ("1", "null"):
            shutil.copytree(folder / "models" / "models", folder / length / "models")
            taken.append(sweep_seconds(folder / length, f"runtime.draft_length={length}"))
    lockstep, drafts = taken
    return {
        "quickstart_lockstep_s": lockstep,
        "quickstart_s": drafts,
        "quickstart_speedup": lockstep / drafts,
    }


def sweep_seconds(runs: Path, override: str) -> float:
    trb = str(Path(sys.executable).with_name("trb"))
    command = [trb, "submit", "experiments/quickstart.yaml", override, "--runs", str(runs)]
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
