"""Every shipped file loads, and the command starts light."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.experiment.load import load_experiment, load_setup
from orchestrator.experiment.units import expand
from tests.sweeps import ROOT, environment

EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))
SETUPS = sorted((ROOT / "experiments" / "setups").glob("*.yaml"))
QUICKSTART = str(ROOT / "experiments" / "quickstart.yaml")
HEAVY = {"torch", "ray", "transformers", "pandas", "wandb", "matplotlib", "datasets"}


def stem(path: Path) -> str:
    return path.stem


# --- shipped files ---


@pytest.mark.parametrize("path", EXPERIMENTS, ids=stem)
def test_experiments_load_and_expand(path: Path) -> None:
    experiment = load_experiment(path)
    units = expand(experiment)
    assert experiment.name == path.stem
    assert {unit.setup for unit in units} == set(experiment.setups)
    assert {unit.method for unit in units} - {None} == set(experiment.methods)
    assert len({unit.id for unit in units}) == len(units)


@pytest.mark.parametrize("path", SETUPS, ids=stem)
def test_setups_load(path: Path) -> None:
    setup = load_setup(path.stem)
    assert setup.title
    assert setup.evaluation.benchmarks


def test_the_documented_ones_are_there() -> None:
    assert {"quickstart", "paper"} <= set(map(stem, EXPERIMENTS))
    assert {"arithmetic", "qwen3-1.7b", "qwen3-0.6b"} <= set(map(stem, SETUPS))


# --- start-up ---


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["config"],
        ["config", QUICKSTART],
        ["plan", QUICKSTART],
        ["plan", str(ROOT / "experiments" / "paper.yaml"), "--json"],
        ["status", QUICKSTART, "--runs", str(ROOT / "experiments")],  # a folder without runs
        ["table", QUICKSTART, "--runs", str(ROOT / "experiments")],
    ],
    ids=lambda arguments: arguments[0],
)
def test_light_commands_import_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import json, sys
from orchestrator.cli import main
try:
    main({arguments!r})
except SystemExit as ended:
    print(json.dumps([ended.code, sorted({HEAVY!r} & set(sys.modules))]), file=sys.stderr)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert json.loads(done.stderr) == [0, []]
    assert done.stdout
