"""The real command, from submit to the table, with SGLang sampling everything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.records.rundir import RunReader
from tests.engines.installed import skip_without
from tests.sweeps import TINY_SETUP, Sweep, run_sweep, trb

pytestmark = [pytest.mark.engines, pytest.mark.ray, pytest.mark.xdist_group("sglang")]

METHODS = {
    "vanilla": {},
    "trust_region": {"epsilon0": [0.05], "K": [1]},
    "temperature_warmup": {"tau0": [0.8], "E": [2]},
    "sft_warmup": {"K": [1]},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    skip_without("sglang")
    training = {"steps": 2, "checkpoint_every": 2, "sft": {"updates": 1, "checkpoints": [1]}}
    return run_sweep(
        tmp_path_factory.mktemp("sweep"), METHODS, engine={"sampler": "sglang"}, training=training,
        evaluation={"rescore": False},
    )  # fmt: skip


def test_a_sweep_ends_in_its_table(finished: Sweep) -> None:
    for word in ("Vanilla", "TRB", "Temperature", "SFT warmup", "Untrained student"):
        assert word in finished.shown
    status = json.loads(
        trb("status", finished.experiment, "--runs", finished.runs, "--json").stdout
    )
    assert len(status["units"]) == 6
    assert {unit["state"] for unit in status["units"]} == {"done"}


def test_the_blended_step_has_what_only_blending_measures(finished: Sweep) -> None:
    """The first step of TRB was sampled beside the teacher and the second by the student alone, in
    one trial.
    """
    (run,) = [
        RunReader(finished.runs, path.name) for path in finished.runs.glob("tiny-trust_region-*")
    ]
    blended, plain = run.committed_metrics()
    assert blended["acceptance"] is not None
    assert plain.get("acceptance") is None
    for row in (blended, plain):
        assert row["loss"] > 0
        assert 0 < row["response_length"] <= TINY_SETUP["training"]["max_response_tokens"]


def test_submitting_again_finds_everything_done(finished: Sweep, tmp_path: Path) -> None:
    done = trb("submit", finished.experiment, "--runs", finished.runs)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything is done" in done.stdout
