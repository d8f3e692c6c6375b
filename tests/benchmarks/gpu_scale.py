"""How large `make gpu-proof` makes everything."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from orchestrator.config import Shape
from orchestrator.engines.interface import Owner
from orchestrator.engines.torch.causal import CausalModel, best_device
from orchestrator.experiment.load import load_experiment
from tests.benchmarks.decoding import Workload, random_model

SMALL = Shape(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=128)
SMALL_VOCABULARY = 512


@dataclasses.dataclass(frozen=True)
class Scale:
    """Shapes and lengths: `rows` responses of `new_tokens` at prompts of `prompt`, updates over `sequence` tokens.

    The mean context while decoding is `prompt` + `new_tokens` ÷ 2. `models` is the folder of the pair, `quickstart`
    what its experiment is overridden with, and `tests` what pytest is given.
    """

    student: Shape
    teacher: Shape
    vocabulary: int
    rows: int
    prompt: int
    new_tokens: int
    sequence: int
    repeats: int
    models: Path
    quickstart: tuple[str, ...]
    tests: tuple[str, ...]

    def workload(self) -> Workload:
        """For ratios, whose slowest mode passes the teacher once for each token: half as many of them."""
        return Workload(self.model("student"), self.model("teacher"), self.rows, 64, self.new_tokens // 2, self.repeats)

    def model(self, owner: Owner) -> CausalModel:
        """On the GPU in bfloat16, or on the CPU in float32 where there is none."""
        shape, seed = (self.student, 0) if owner == "student" else (self.teacher, 1)
        device = best_device()
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        return random_model(shape, self.vocabulary, owner, seed, 0.02, device, dtype)


def scale(small: bool, models: Path) -> Scale:
    """The paper's 1.7B pair at a mean context of 2,048 tokens; or what a CPU does in seconds."""
    if small:
        teacher = dataclasses.replace(SMALL, layers=4, hidden=128)
        reduced = ("methods.vanilla.seeds=[0]", "methods.trust_region.seeds=[0]", "training.steps=2")
        left = tuple(f"methods.{name}=null" for name in ("fixed_epsilon", "veto", "skd", "sft_warmup"))
        tests = ("tests/engines/torch/test_scoring.py",)
        return Scale(SMALL, teacher, SMALL_VOCABULARY, 4, 8, 12, 64, 1, models, (*reduced, *left), tests)
    setup = load_experiment(Path("experiments/paper.yaml"), []).setups["qwen3-1.7b"]
    student, teacher, size = setup.student.shape, setup.teacher.shape, setup.vocabulary.size
    return Scale(student, teacher, size, 32, 1024, 2048, 16_384, 2, models, (), ("tests/engines",))
