"""Every shipped file loads, and the command starts light."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.data.benchmarks import lacking
from orchestrator.experiment.evaluation_protocol import rungs
from orchestrator.experiment.load import load_experiment, load_setup
from orchestrator.experiment.units import checkpoint_steps, expand
from orchestrator.planning.plan import make_plan
from orchestrator.planning.view import totals
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


def test_null_takes_the_confirming_runs_away() -> None:
    path = ROOT / "experiments" / "arithmetic-seeds.yaml"
    assert load_experiment(path).confirmed_methods
    assert load_experiment(path, ["confirm=null"]).confirmed_methods == []


# --- the first sweep on a GPU ---


@pytest.mark.parametrize("name", ["gpu-smoke", "gpu-smoke-random"])
def test_a_first_sweep_takes_a_quarter_of_an_hour_and_shows_all_that_a_sweep_does(
    name: str,
) -> None:
    """By the plan's middle estimate; blending ends before a checkpoint in the middle, and
    checkpoints race.
    """
    experiment = load_experiment(ROOT / "experiments" / f"{name}.yaml")
    setup = experiment.setups[name]
    hours = totals(make_plan(experiment))["gpu_hours"]["total"]
    assert 0 < hours["low"] < hours["mid"] <= 0.25
    assert (experiment.runtime.placement.gpus, setup.engine.dtype) == (1, "bfloat16")
    assert set(experiment.methods) == {"vanilla", "trust_region", "skd"}
    [trb] = [unit for unit in expand(experiment) if unit.method == "trust_region"]
    steps = checkpoint_steps(trb, setup)
    assert 0 < trb.knobs["K"] < steps[0] < steps[-1] == setup.training.steps
    assert (setup.evaluation.budget, setup.evaluation.rescore) == ("adaptive", True)
    assert len(rungs(setup.evaluation)) > 1


def test_random_weights_stand_in_for_the_real_pair() -> None:
    """Shapes and vocabulary, and so memory and speed, are those of the real models, in turn those
    of qwen3-0.6b.
    """
    real, random, paper = (
        load_setup(name) for name in ("gpu-smoke", "gpu-smoke-random", "qwen3-0.6b")
    )
    for setup in (real, random):
        assert (setup.vocabulary, setup.engine) == (paper.vocabulary, paper.engine)
        assert (setup.student.shape, setup.teacher.shape) == (
            paper.student.shape,
            paper.teacher.shape,
        )
    assert (real.student, real.teacher, real.prompt) == (paper.student, paper.teacher, paper.prompt)
    assert random.training == real.training
    experiments = [
        load_experiment(ROOT / "experiments" / f"gpu-smoke{kind}.yaml") for kind in ("", "-random")
    ]
    assert experiments[0].methods == experiments[1].methods
    assert lacking([random], ROOT / "no such folder") == {}, "nothing to fetch"
    assert len(lacking([real], ROOT / "no such folder")) == 4


# --- start-up ---


def test_light_commands_import_nothing_heavy() -> None:
    paper, no_runs = str(ROOT / "experiments" / "paper.yaml"), ["--runs", str(ROOT / "experiments")]
    commands = [
        ["--help"],
        ["config", QUICKSTART],
        ["plan", paper, "--json"],
        ["status", QUICKSTART, *no_runs],
        ["table", QUICKSTART, *no_runs],
    ]
    code = f"""
import contextlib, io, json, sys
from orchestrator.cli import main
for command in {commands!r}:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main(command)
    assert out.getvalue(), command
    print(json.dumps([command[0], sorted({HEAVY!r} & set(sys.modules))]), file=sys.stderr)
"""
    started = [sys.executable, "-c", code]
    done = subprocess.run(
        started, check=True, cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    loaded = [json.loads(line) for line in done.stderr.splitlines()]
    assert loaded == [[command[0], []] for command in commands]
