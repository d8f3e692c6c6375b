"""Compares a GPU with the CPU, and prices of blending on it: `python -m benchmarks.gpu [--small]`.

Part of `make gpu-proof`, for numbers that no command of trb gives: how many rows of keyed rollouts
have the same tokens on both, how far the solver's laws are apart, and the ratios of `make bench` for
random weights in the shapes of Qwen3-1.7B and 8B. With `--small` the models are small, and the
device is the one that is there.
"""

from __future__ import annotations

import argparse
import sys

import torch

from benchmarks.bench import REPEATS, bisection, show
from benchmarks.decoding import CPU, EPSILON, Workload, once, random_model, ratios
from benchmarks.paper_sweep import PAPER
from orchestrator.engines.common.causal import best_device
from orchestrator.engines.common.passes import attention_for
from orchestrator.experiment.load import load_experiment
from orchestrator.pair import Shape
from orchestrator.policy import laws

SMALL = Shape(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=128)
SMALL_VOCABULARY = 512
TARGETS = {"blend_vs_vanilla": 1.3, "blend_vs_lockstep": 0.6}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--small", action="store_true", help="small models, on any device")
    small, device = parser.parse_args().small, best_device()
    if device == CPU and not small:
        print(
            "no CUDA device here — run it on a machine with a GPU, or with --small",
            file=sys.stderr,
        )
        return 2
    shapes, vocabulary = (SMALL, SMALL), SMALL_VOCABULARY
    rows, prompt, new_tokens = 4, 8, 12
    if not small:
        setup = load_experiment(PAPER).setups["qwen3-1.7b"]
        shapes, vocabulary = (setup.student.shape, setup.teacher.shape), setup.vocabulary.size
        rows, prompt, new_tokens = 32, 64, 256
    title = f"{device}, torch {torch.__version__}"
    show(agreement(device, vocabulary), title, {})
    dtype = torch.float32 if device == CPU else torch.bfloat16
    student = random_model(shapes[0], vocabulary, "student", 0, 0.02, device, dtype)
    teacher = random_model(shapes[1], vocabulary, "teacher", 1, 0.02, device, dtype)
    show(ratios(Workload(student, teacher, rows, prompt, new_tokens, REPEATS)), title, TARGETS)
    return 0


def agreement(device: torch.device, vocabulary: int) -> dict[str, float]:
    """The device against the CPU in float32: tokens of the same keys, and the solver's law."""
    tokens = [_small_pair(place).blended(5).tokens_BT for place in (device, CPU)]
    width = min(each.shape[1] for each in tokens)
    same = (tokens[0][:, :width] == tokens[1][:, :width]).all(-1)
    generator = torch.Generator().manual_seed(0)
    log_p = (3 * torch.randn(8, vocabulary, generator=generator)).log_softmax(-1)
    log_q = (log_p + torch.randn(8, vocabulary, generator=generator)).log_softmax(-1)
    there_p, there_q = log_p.to(device), log_q.to(device)
    there, here = laws.solve(there_p, there_q, EPSILON), laws.solve(log_p, log_q, EPSILON)
    newton = once(lambda: laws.solve(there_p, there_q, EPSILON))
    return {
        "agreeing_rows": float(same.double().mean()),
        "solver_log_mu_difference": float((there.log_mu.cpu() - here.log_mu).abs().max()),
        "solver_beta_difference": float((there.beta.cpu() - here.beta).abs().max()),
        "solver_vs_bisection": newton / once(lambda: bisection(there_p, there_q, 40)),
    }


def _small_pair(device: torch.device) -> Workload:
    """The same float32 weights on any device."""
    student = random_model(SMALL, SMALL_VOCABULARY, "student", 0)
    teacher = random_model(SMALL, SMALL_VOCABULARY, "teacher", 1)
    for causal in (student, teacher):
        causal.model.set_attn_implementation(attention_for(device))
        causal.model.to(device)
    return Workload(student, teacher, 64, 8, 64, 1)


if __name__ == "__main__":
    sys.exit(main())
