"""A tiny experiment with a continuation probe whose student is right now and then."""

from __future__ import annotations

import io
from pathlib import Path

import yaml
from rich.console import Console

from orchestrator.commands.probe import run_probes
from orchestrator.config import Experiment
from orchestrator.experiment.load import load_experiment
from orchestrator.selection.study import Study
from tests.sweeps import TINY_SETUP, TINY_SHAPE, write_experiment

SIZES = {
    "prompts": 40,
    "prefixes": 2,
    "continuations": 3,
    "lengths": [3, 0.75],
}  # three commits; t = 3 and 12
LIMIT = 16
SHAPE = TINY_SHAPE | {"hidden": 32, "ffn": 64}
ANSWERS_AT_ONCE = {
    "updates": 120,
    "batch": 16,
    "lr": 1e-2,
    "no_reasoning": 1.0,
    "wrong_step": 0.5,
    "off_task": 0.3,
}


def write_probe(folder: Path, **probe: object) -> Path:
    """An experiment file; the student boxes some number, the teacher a better one."""
    path = write_experiment(
        folder,
        {"vanilla": {}, "trust_region": {"epsilon0": [0.05, 0.3], "K": [5]}},
        training={"max_response_tokens": LIMIT},
        probe=SIZES | probe,
    )
    better = ANSWERS_AT_ONCE | {"wrong_step": 0.0, "off_task": 0.0, "seed": 1}
    student = {"eos": 45, "shape": SHAPE, "recipe": ANSWERS_AT_ONCE}
    teacher = {"eos": 46, "shape": SHAPE, "recipe": better}
    setup = TINY_SETUP | {"student": student, "teacher": teacher}
    (folder / "setups" / "tiny.yaml").write_text(yaml.safe_dump(setup))
    return path


def run_probe(path: Path, *overrides: str) -> Experiment:
    """Run what is missing of the probe, with the run directories beside the file; returns its
    experiment.
    """
    experiment = load_experiment(path, overrides)
    run_probes(Study(experiment, [], path.parent / "runs"), Console(file=io.StringIO()))
    return experiment
