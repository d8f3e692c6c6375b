"""`trb submit` of a budget for whole batches, on the embedded world in which prefixes matter."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from orchestrator.experiment.load import load_experiment
from orchestrator.models.make import make
from orchestrator.policy.laws import MOST_PASSES, TOLERANCE
from orchestrator.records.rundir import RunReader
from tests.sweep.test_recovery import kill_driver_midway
from tests.sweeps import contents, trb
from tests.without_ray import run_without_ray

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("batch_budget"), pytest.mark.timeout(1800)]

BUDGET, STEPS = 0.1, 8


def test_batches_keep_their_budget_and_a_kill_changes_no_byte(tmp_path: Path) -> None:
    """The driver dies between two checkpoints; the next one repeats steps from committed rows."""
    short = {"arithmetic_short": {"n": 1, "limit": 4}, "arithmetic_long": None}
    sweep = {
        "setups": ["derailing"],
        "methods": {"batch_budget": {"epsilon0": [BUDGET], "K": [STEPS]}},
        "training": {"steps": STEPS, "checkpoint_every": 2},
        "evaluation": {"rescore": False, "benchmarks": short | {"arithmetic_longest": None}},
        "runtime": {"keep": "all"},
    }
    experiment = tmp_path / "sweep.yaml"
    experiment.write_text(yaml.safe_dump(sweep))
    undisturbed, runs = tmp_path / "undisturbed", tmp_path / "runs"
    setup = load_experiment(experiment).setups["derailing"]
    make(setup, ["student", "teacher"], undisturbed, lambda *_: None)  # copies what is shipped
    run_without_ray(experiment, undisturbed)
    [unit] = [path.name for path in undisturbed.glob("derailing-batch_budget-*")]
    kill_driver_midway([experiment, "--runs", runs], runs / unit)
    done = trb("submit", experiment, "--runs", runs)
    assert done.returncode == 0, done.stdout + done.stderr
    assert contents(runs) == contents(undisturbed)

    run, within = RunReader(runs, unit), 0
    passes = {row["step"]: row["passes"] for row in run.timing() if row["phase"] == "train"}
    for row in run.metrics():
        step, epsilon = row["step"], BUDGET * (1 - row["step"] / STEPS)
        assert 0 < row["beta"] < 1
        assert row["behavior_kl"] == pytest.approx(epsilon, rel=0.1)
        fits = row["behavior_kl"] == pytest.approx(epsilon, rel=TOLERANCE)
        assert fits or passes[step] == MOST_PASSES
        within += fits
    assert within >= STEPS - 1
