"""`make gpu-proof --small` as it is typed, on the parts that need no engine but torch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import LIMITS_S, all_parts
from benchmarks.gpu_parts import phase_seconds, write_trial
from benchmarks.gpu_phases import gpu_named
from benchmarks.gpu_scale import Scale, job, scale
from orchestrator.config import Runtime
from orchestrator.experiment.load import load_experiment
from orchestrator.planning.rates import GPUS
from tests.sweeps import ROOT, environment

FEW = ("models", "torch_learning")
COMMAND = [sys.executable, "-m", "benchmarks.gpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the command has left its results."""
    folder = tmp_path_factory.mktemp("proof")
    parts = [argument for part in FEW for argument in ("--part", part)]
    done = subprocess.run(
        [*COMMAND, "--small", "--folder", str(folder), *parts],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "table.md").read_text(encoding="utf-8") in done.stdout
    return folder


@pytest.fixture(scope="module")
def size(folder: Path) -> Scale:
    return scale(True, folder / "models")


def test_each_part_leaves_its_numbers_and_its_log(folder: Path) -> None:
    for part in FEW:
        result = json.loads((folder / f"{part}.json").read_text())
        assert result["failure"] is None
        assert result["where"]["torch"] == torch.__version__
        assert result["measured"]
        assert (folder / f"{part}.log").read_text()
    learning = json.loads((folder / "torch_learning.json").read_text())["measured"]
    assert learning["tokens_per_s"] > 0
    assert next(iter(learning)) == "start_s"
    table = (folder / "table.md").read_text(encoding="utf-8")
    assert table.count("not measured") == len(LIMITS_S) - len(FEW)


def test_every_part_has_a_limit() -> None:
    assert set(LIMITS_S) == set(all_parts())
    assert next(iter(LIMITS_S)) == "models"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so() -> None:
    done = subprocess.run(
        COMMAND, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("gpu-proof: no CUDA device here")
    assert done.stderr.count("\n") == 1


def test_engines_are_opened_as_trials_open_them(size: Scale) -> None:
    opened = job(size, "sglang", "verl")
    assert opened.takes_turns
    assert opened.runtime.micro_batch_tokens == Runtime().micro_batch_tokens
    assert opened.runtime.rollout_batch is None
    whole = job(scale(False, size.models), "sglang", "torch")
    assert (
        whole.setup.training
        == load_experiment("experiments/paper.yaml").setups["qwen3-1.7b"].training
    )


@pytest.mark.parametrize("trainer", ["torch", "verl"])
def test_the_trial_is_a_valid_experiment(size: Scale, tmp_path: Path, trainer: str) -> None:
    experiment = load_experiment(write_trial(tmp_path, size, trainer))  # pyright: ignore[reportArgumentType]
    setup = experiment.setups["random"]
    assert (setup.engine.sampler, setup.engine.trainer) == ("sglang", trainer)
    assert replace(setup.student.shape, parameters=0) == size.student
    assert setup.vocabulary.size == size.vocabulary


def test_seconds_of_a_trial_are_summed_by_phase(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"phase": "start", "role": "learner", "seconds": 2.0},
        {"phase": "train", "step": 0, "rollout": 3.0, "learn": 1.0},
        {"phase": "train", "step": 1, "rollout": 4.0, "score": 0.5, "learn": 1.5},
        {"phase": "evaluate", "seconds": 6.0},
    ]
    (tmp_path / "unit").mkdir()
    (tmp_path / "unit" / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = {
        "learner_s": 2.0,
        "rollout_s": 7.0,
        "learn_s": 2.5,
        "score_s": 0.5,
        "evaluate_s": 6.0,
    }
    assert phase_seconds(tmp_path) == expected


def test_a_card_is_known_by_its_name() -> None:
    assert gpu_named("NVIDIA H100 80GB HBM3", 79.1) == GPUS["H100-80GB"]
    assert gpu_named("NVIDIA A100-SXM4-40GB", 39.4) == GPUS["A100-40GB"]
    assert gpu_named("NVIDIA A100-SXM4-80GB", 79.3) == GPUS["A100-80GB"]
    assert gpu_named("NVIDIA GH200 480GB", 94.5) is None  # no H200
    assert gpu_named("Tesla T4", 14.6) is None
