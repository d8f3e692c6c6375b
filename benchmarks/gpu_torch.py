"""Parts of `make gpu-proof` inside the torch engine: prices of blending, the loss, GPU against CPU;
and the tests.
"""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.bench import bisection
from benchmarks.decoding import CPU, EPSILON, Workload, once, random_model, ratios
from benchmarks.gpu_engines import Numbers
from benchmarks.gpu_jobs import made_up
from benchmarks.gpu_phases import Phases
from benchmarks.gpu_scale import SMALL, SMALL_VOCABULARY, Scale
from orchestrator.config import Optimizer
from orchestrator.engines.common.causal import CausalModel, best_device
from orchestrator.engines.common.passes import attention_for
from orchestrator.engines.torch.trainer import TorchTrainer
from orchestrator.policy import laws
from orchestrator.policy.spec import Objective
from orchestrator.rollouts import Rollouts, TeacherScores


def prices(size: Scale) -> Numbers:
    """The cost of blending beside vanilla with scoring, and beside lockstep."""
    yield ratios(size.workload())


def loss(
    size: Scale, step_of: Callable[[CausalModel, Rollouts, TeacherScores], Callable[[], object]]
) -> Numbers:
    """Tokens/s and peak memory of an update on one long sequence."""
    prompt = size.sequence // 8
    batch = made_up(replace(size, rows=1, prompt=prompt, new_tokens=size.sequence - prompt))
    student = size.model("student")
    student.model.float()
    step = step_of(student, *batch)
    step()
    with Phases() as phases:
        step()
        taken = phases.over("update")
    yield {**taken, "tokens_per_s": size.sequence / taken["update_s"]}


def gathered_step(
    student: CausalModel, rollouts: Rollouts, scores: TeacherScores
) -> Callable[[], object]:
    """Our trainer's update: logits of the support alone."""
    micro_batch_tokens = len(rollouts.requests[0].prompt_ids) + int(rollouts.lengths_B[0])
    updating = TorchTrainer(student, Optimizer(), micro_batch_tokens, torch.bfloat16, steps=400)
    return lambda: updating.step(rollouts, scores, Objective("renormalized"), 0)


def plain_step(
    student: CausalModel, rollouts: Rollouts, scores: TeacherScores
) -> Callable[[], object]:
    """All logits at once, the update the same."""
    student.model.train()
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


def agreement(size: Scale) -> Numbers:
    """GPU against CPU in float32: tokens of the same keys, and the solver's law and
    log-probabilities.
    """
    device = best_device()
    tokens = [_small_pair(place).blended(5).tokens_BT for place in (device, CPU)]
    width = min(each.shape[1] for each in tokens)
    same = (tokens[0][:, :width] == tokens[1][:, :width]).all(-1)
    yield {"agreeing_rows": float(same.double().mean())}
    generator = torch.Generator().manual_seed(0)
    log_p = (3 * torch.randn(8, size.vocabulary, generator=generator)).log_softmax(-1)
    log_q = (log_p + torch.randn(8, size.vocabulary, generator=generator)).log_softmax(-1)
    there = laws.solve(log_p.to(device), log_q.to(device), EPSILON)
    here = laws.solve(log_p, log_q, EPSILON)
    yield {
        "solver_log_mu_difference": float((there.log_mu.cpu() - here.log_mu).abs().max()),
        "solver_beta_difference": float((there.beta.cpu() - here.beta).abs().max()),
    }
    newton = once(lambda: laws.solve(log_p.to(device), log_q.to(device), EPSILON))
    yield {
        "solver_vs_bisection": newton
        / once(lambda: bisection(log_p.to(device), log_q.to(device), 40))
    }


def _small_pair(device: torch.device) -> Workload:
    """The same float32 weights on any device."""
    student = random_model(SMALL, SMALL_VOCABULARY, "student", 0)
    teacher = random_model(SMALL, SMALL_VOCABULARY, "teacher", 1)
    for causal in (student, teacher):
        causal.model.set_attn_implementation(attention_for(device))
        causal.model.to(device)
    return Workload(student, teacher, 64, 8, 64, 1)


def tests_of(size: Scale, engine: str) -> Numbers:
    """How many of an engine's tests pass on this device. RuntimeError if any fails; the log names
    it.
    """
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-o", "addopts=", "-v", "--durations=5", f"--junitxml={report}"]
        subprocess.run([sys.executable, "-m", "pytest", *options, *size.tests[engine]], check=False)
        outcomes = counts(report)
    yield outcomes
    if outcomes["tests_failed"]:
        raise RuntimeError(f"{outcomes['tests_failed']:.0f} tests failed")


def counts(report: Path) -> dict[str, float]:
    """Tests by outcome in a report of pytest. Raises FileNotFoundError where none was written."""
    (suite,) = ElementTree.parse(report).getroot()
    found = {name: float(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = found["failures"] + found["errors"]
    return {
        "tests_passed": found["tests"] - failed - found["skipped"],
        "tests_failed": failed,
        "tests_skipped": found["skipped"],
    }


def torch_parts() -> dict[str, Callable[[Scale], Numbers]]:
    """Name → part."""
    return {
        "agreement": agreement,
        "loss_gathered": lambda size: loss(size, gathered_step),
        "loss_plain": lambda size: loss(size, plain_step),
        "tests_sglang": lambda size: tests_of(size, "sglang"),
        "tests_trainers": lambda size: tests_of(size, "trainers"),
        "tests_torch": lambda size: tests_of(size, "torch"),
        "torch_prices": prices,
    }
