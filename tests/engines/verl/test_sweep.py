"""A whole sweep that trains and scores on verl: a process and a rank are killed midway, and nothing
is lost by it.

One trial has two ranks, since its trial has two cores; the other has a rank in each of two actors.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.engines.verl.engine import MODULE
from orchestrator.liveness.deaths import members, processes
from orchestrator.records.log import read_log
from orchestrator.records.rundir import LEARNER_FOLDER, RunReader
from tests.sweep.test_recovery import command_line, wait_for, worker_midway
from tests.sweeps import contents, start, trb, write_experiment
from tests.without_ray import run_without_ray

pytestmark = [
    pytest.mark.engines,
    pytest.mark.ray,
    pytest.mark.xdist_group("ray"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        importlib.util.find_spec("verl") is None, reason="verl is not installed (make test-engines)"
    ),
]
METHODS = {"vanilla": {"placement": "colocated"}, "trust_region": {"epsilon0": [0.1], "K": [5]}}
LONG = {"steps": 30, "checkpoint_every": 5}  # so that there is a middle on a fast machine, too
ON_VERL = {"engine": {"trainer": "verl"}, "runtime": {"keep": "all", "placement": {"cpus": 2}}}


def ranks_of(worker: int) -> Iterator[int]:
    """Processes of ranks that a trial's process has started."""
    for process in members(processes(), Path("/nowhere"), worker):
        if MODULE.encode() in command_line(process.pid):
            yield process.pid


def test_a_sweep_on_verl_from_submit_to_table_with_kills_midway(tmp_path: Path) -> None:
    experiment = write_experiment(
        tmp_path, METHODS, training=LONG, evaluation={"rescore": False}, **ON_VERL
    )
    undisturbed, runs = tmp_path / "undisturbed", tmp_path / "runs"
    run_without_ray(experiment, undisturbed)
    shutil.copytree(undisturbed / "models", runs / "models")
    (vanilla,) = (runs / unit.name for unit in undisturbed.glob("tiny-vanilla-*"))
    (blended,) = (runs / unit.name for unit in undisturbed.glob("tiny-trust_region-*"))

    process = start("submit", experiment, "--runs", runs)
    left = {vanilla, blended}

    def kill() -> bool:
        for unit in list(left):
            if worker := worker_midway(unit):
                victim = worker if unit == vanilla else max(ranks_of(worker))
                os.kill(victim, signal.SIGKILL)
                left.remove(unit)
        return not left

    wait_for(process, kill)
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    for unit in (vanilla, blended):
        assert "attempt 2 of 3" in (read_log(unit) or "")
    assert "lost: rank 2 of 2" in (read_log(blended) or "")
    assert contents(runs) == contents(undisturbed)
    assert not list(runs.rglob(f"*/{LEARNER_FOLDER}"))
    assert list(RunReader(runs, vanilla.name).checkpoints()) == [5, 10, 15, 20, 25, 30]
    table = trb("table", experiment, "--runs", runs)
    assert table.returncode == 0, table.stderr
    assert "Vanilla" in table.stdout
    assert "TRB" in table.stdout
