"""How large `make gpu-proof` makes everything."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from benchmarks.decoding import Workload, random_model
from orchestrator.config import Shape
from orchestrator.engines.common.causal import CausalModel, best_device
from orchestrator.engines.interface import Owner
from orchestrator.experiment.load import load_experiment

SMALL = Shape(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=128)
SMALL_VOCABULARY = 512
ENGINES = "tests/engines"


@dataclasses.dataclass(frozen=True)
class Scale:
    """Shapes and lengths: `rows` responses of `new_tokens` at prompts of `prompt`.

    `longest` are the tokens of the longest response that training may have. An evaluator is asked
    for `waiting` responses of `evaluated` tokens. The loss is compared on one sequence of
    `sequence` tokens. A trial decodes `trial_tokens` at most. `models` is the folder of the pair,
    and `tests` has what pytest is given for each part.
    """

    student: Shape
    teacher: Shape
    vocabulary: int
    rows: int
    prompt: int
    new_tokens: int
    longest: int
    waiting: int
    evaluated: int
    sequence: int
    trial_tokens: int
    repeats: int
    models: Path
    tests: dict[str, tuple[str, ...]]

    def workload(self) -> Workload:
        """For ratios, whose slowest mode passes the teacher once for each token: an eighth of them."""
        return Workload(
            self.model("student"),
            self.model("teacher"),
            self.rows,
            64,
            self.new_tokens // 4,
            self.repeats,
        )

    def model(self, owner: Owner) -> CausalModel:
        """On the GPU in bfloat16, or on the CPU in float32 where there is none."""
        shape, seed = (self.student, 0) if owner == "student" else (self.teacher, 1)
        device = best_device()
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        return random_model(shape, self.vocabulary, owner, seed, 0.02, device, dtype)


def scale(small: bool, models: Path) -> Scale:
    """The paper's 1.7B pair at its own lengths; or what a CPU does in seconds."""
    if small:
        return Scale(
            student=SMALL,
            teacher=dataclasses.replace(SMALL, layers=4, hidden=128),
            vocabulary=SMALL_VOCABULARY,
            rows=4,
            prompt=8,
            new_tokens=12,
            longest=24,
            waiting=40,
            evaluated=4,
            sequence=64,
            trial_tokens=12,
            repeats=1,
            models=models,
            tests={
                "torch": (f"{ENGINES}/torch/test_scoring.py",),
                "sglang": (
                    f"{ENGINES}/sglang/test_blending_rows.py",
                    f"{ENGINES}/sglang/test_private.py",
                ),
                "trainers": (f"{ENGINES}/test_catalog.py",),
            },
        )
    setup = load_experiment(Path("experiments/paper.yaml"), []).setups["qwen3-1.7b"]
    return Scale(
        student=setup.student.shape,
        teacher=setup.teacher.shape,
        vocabulary=setup.vocabulary.size,
        rows=32,
        prompt=setup.training.max_prompt_tokens,
        new_tokens=1024,
        longest=setup.training.max_response_tokens,
        waiting=2000,
        evaluated=512,
        sequence=4096,
        trial_tokens=256,
        repeats=1,
        models=models,
        tests={
            "torch": (f"{ENGINES}/torch",),
            "sglang": (f"{ENGINES}/sglang/test_engine.py", f"{ENGINES}/sglang/test_blending.py"),
            "trainers": (f"{ENGINES}/test_trainer_contract.py",),
        },
    )
