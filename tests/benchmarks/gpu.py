"""`make gpu-proof`: everything that needs a GPU, on random weights in the shapes of Qwen3-1.7B and Qwen3-8B.

It needs no network. Parts run in processes of their own, so that one that fails or runs out of memory leaves the
others their numbers; what is missing in `gpu.json` is missing in the table, with its reason, for example an engine that
is not installed. `--small` runs the same code on small models on whatever device there is.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from orchestrator.config import Optimizer
from orchestrator.engines.memory import GIB
from orchestrator.engines.torch.attention import attention_for
from orchestrator.engines.torch.causal import CausalModel, best_device
from orchestrator.engines.torch.trainer import TorchTrainer
from orchestrator.policy import trust_region
from orchestrator.policy.spec import Objective
from orchestrator.rollouts import Rollouts, TeacherScores
from tests.benchmarks.bench import bisection
from tests.benchmarks.decoding import CPU, EPSILON, Workload, once, random_model, ratios, synchronize
from tests.benchmarks.gpu_engines import engine_parts, made_up
from tests.benchmarks.gpu_scale import SMALL, SMALL_VOCABULARY, Scale, scale

TARGETS = {"blend_vs_vanilla": 1.3, "blend_vs_lockstep": 0.6}
RESULTS = Path("gpu.json")


def decoding(size: Scale) -> dict[str, float]:
    """Prices and throughput of blending, without compilation."""
    return ratios(size.workload())


def decoding_compiled(size: Scale) -> dict[str, float]:
    """The same with both models compiled for any batch and length."""
    load = size.workload()
    for causal in (load.student, load.teacher):
        causal.model.model.forward = torch.compile(causal.model.model.forward, dynamic=True)
    return {f"compiled_{name}": value for name, value in ratios(load).items()}


def memory_profile(size: Scale) -> dict[str, float]:
    """Peak GiB of generation, alone and blended, beside weights + n·KV of the paper ("Efficiency Analysis")."""
    load = size.workload()
    tokens = size.rows * (load.prompt + size.new_tokens)
    weights = _gib_of_weights(load.student) + _gib_of_weights(load.teacher)  # both stay: the teacher scores
    kv_s, kv_q = (tokens * _kv_bytes(causal) / GIB for causal in (load.student, load.teacher))
    return {
        "peak_gib_vanilla_with_scoring": _peak_gib(load.vanilla),
        "peak_gib_blended": _peak_gib(lambda: load.blended(8)),
        "formula_gib_vanilla": weights + kv_s,
        "formula_gib_blended": weights + kv_s + kv_q,
    }


def learner(size: Scale) -> dict[str, float]:
    """Tokens/s and peak memory of an update on full-length sequences, gathered and with all logits."""
    measured = {}
    for name, step in (("ours", _learner_step), ("plain", _plain_step)):
        student = size.model("student")
        run = step(student, size)
        run()
        peak = _peak_gib(run)
        measured |= {f"learner_{name}_tokens_per_s": _length(size) / once(run), f"learner_{name}_peak_gib": peak}
        del student, run
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return measured


def agreement(size: Scale) -> dict[str, float]:
    """GPU against CPU in float32: tokens of the same keys, and the solver's law and log-probabilities."""
    device = best_device()
    tokens = [_small_pair(place).blended(5).tokens_BT for place in (device, CPU)]
    generator = torch.Generator().manual_seed(0)
    log_p = (3 * torch.randn(8, size.vocabulary, generator=generator)).log_softmax(-1)
    log_q = (log_p + torch.randn(8, size.vocabulary, generator=generator)).log_softmax(-1)
    there = trust_region.solve(log_p.to(device), log_q.to(device), EPSILON)
    here = trust_region.solve(log_p, log_q, EPSILON)
    width = min(each.shape[1] for each in tokens)
    same = (tokens[0][:, :width] == tokens[1][:, :width]).all(-1)
    newton = once(lambda: trust_region.solve(log_p.to(device), log_q.to(device), EPSILON))
    return {
        "agreeing_rows": float(same.double().mean()),
        "solver_log_mu_difference": float((there.log_mu.cpu() - here.log_mu).abs().max()),
        "solver_beta_difference": float((there.beta.cpu() - here.beta).abs().max()),
        "solver_vs_bisection": newton / once(lambda: bisection(log_p.to(device), log_q.to(device), 40)),
    }


OURS = (decoding, decoding_compiled, memory_profile, learner, agreement)
PARTS: dict[str, Callable[[Scale], dict[str, float]]] = {part.__name__: part for part in OURS} | engine_parts()


def _small_pair(device: torch.device) -> Workload:
    """The same float32 weights on any device."""
    student = random_model(SMALL, SMALL_VOCABULARY, "student", 0)
    teacher = random_model(SMALL, SMALL_VOCABULARY, "teacher", 1)
    for causal in (student, teacher):
        causal.model.set_attn_implementation(attention_for(device))
        causal.model.to(device)
    return Workload(student, teacher, 64, 8, 64, 1)


def _gib_of_weights(causal: CausalModel) -> float:
    return sum(parameter.nbytes for parameter in causal.model.parameters()) / GIB


def _kv_bytes(causal: CausalModel) -> int:
    """Keys and values of one token in all layers."""
    config = causal.model.config
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * causal.model.dtype.itemsize


def _peak_gib(run: Callable[[], object]) -> float:
    """Peak GiB that tensors held on the GPU; NaN, dropped from the results, without one."""
    if not torch.cuda.is_available():
        return float("nan")
    torch.cuda.reset_peak_memory_stats()
    run()
    synchronize()
    return torch.cuda.max_memory_allocated() / GIB


def _length(size: Scale) -> int:
    """Tokens of the sequence of which all logits fit beside the learner's state."""
    return size.sequence // 2


def _batch(size: Scale) -> tuple[Rollouts, TeacherScores]:
    """One finished rollout of full length with made-up teacher scores."""
    prompt = _length(size) // 8
    return made_up(dataclasses.replace(size, rows=1, prompt=prompt, new_tokens=_length(size) - prompt))


def _learner_step(student: CausalModel, size: Scale) -> Callable[[], object]:
    rollouts, scores = _batch(size)
    student.model.float()
    updating = TorchTrainer(student, Optimizer(), _length(size), torch.bfloat16, steps=400)
    return lambda: updating.step(rollouts, scores, Objective("renormalized"), 0)


def _plain_step(student: CausalModel, size: Scale) -> Callable[[], object]:
    """All logits at once, the update the same."""
    rollouts, scores = _batch(size)
    student.model.float().train()
    device = student.device
    ids = torch.tensor([[*rollouts.requests[0].prompt_ids, *rollouts.response(0)]], device=device)
    support, log_q = rollouts.support_ids_BTK[0].to(device), scores.support_BTK[0].to(device)
    adamw = torch.optim.AdamW(student.model.parameters(), lr=1e-5)

    def step() -> None:
        adamw.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            logits = student.model(input_ids=ids, use_cache=False).logits[0, -len(support) - 1 : -1]
        log_p = logits.float().log_softmax(-1).gather(-1, support)
        log_p, target = (each - each.logsumexp(-1, keepdim=True) for each in (log_p, log_q))
        (log_p.exp() * (log_p - target)).sum(-1).mean().backward()
        torch.nn.utils.clip_grad_norm_(student.model.parameters(), 1.0)
        adamw.step()

    return step


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="small models on the device that is there")
    parser.add_argument("--part", choices=PARTS, help="one part, in this process; `models` comes before all others")
    parser.add_argument("--models", type=Path, help="folder of the pair (default: a temporary one)")
    options = parser.parse_args()
    if not (options.small or torch.cuda.is_available()):
        print("gpu-proof: no CUDA device here — run it on a machine with a GPU, or with --small", file=sys.stderr)
        return 2
    if options.part:
        measured = PARTS[options.part](scale(options.small, options.models))
        print(json.dumps({name: value for name, value in measured.items() if not math.isnan(value)}))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return _all(options.small, options.models or Path(folder))


def _all(small: bool, models: Path) -> int:
    results: dict[str, float] = {}
    failures: dict[str, str] = {}
    for part in ("models", *(part for part in PARTS if part != "models")):
        started = time.perf_counter()
        command = [sys.executable, "-m", "tests.benchmarks.gpu", "--part", part, "--models", str(models)]
        done = subprocess.run([*command, *(["--small"] if small else [])], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            results |= json.loads(done.stdout.splitlines()[-1]) | {f"{part}_s": time.perf_counter() - started}
        else:
            failures[part] = reason(done.stderr)
        print(f"gpu-proof: {part}: {failures.get(part, 'done')}", file=sys.stderr, flush=True)
    _show(results, failures)
    RESULTS.write_text(json.dumps({"results": results, "failures": failures}, indent=2) + "\n", encoding="utf-8")
    return 1 if failures or results.get("tests_failed") else 0


def reason(stderr: str) -> str:
    """The line of an error that ends a part: libraries may say more after it while the process ends."""
    lines = stderr.strip().splitlines() or ["no message"]
    return next((line for line in reversed(lines) if re.match(r"[\w.]+(Error|Lost|NotFinite)\b", line)), lines[-1])


def _show(results: dict[str, float], failures: dict[str, str]) -> None:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    table = Table("name", "measured", "target", title=f"{device}, torch {torch.__version__}")
    for name, value in results.items():
        table.add_row(name, f"{value:.4g}", f"≤ {TARGETS[name]:g}" if name in TARGETS else "")
    for part, reason in failures.items():
        table.add_row(part, "failed", reason)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
