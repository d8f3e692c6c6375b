"""Whatever dies or freezes on the way, every file equals those of an undisturbed sweep in the end.

Each disturbance has a trial of its own, which no earlier one has brought along. All waits end on
conditions; only the limit of a whole test says that something hangs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.liveness.deaths import Process, processes
from orchestrator.liveness.leases import Claims, holder_of
from orchestrator.records.log import read_log
from tests.sweeps import cluster_of, command_line, contents, start, trb, write_experiment
from tests.without_ray import run_without_ray

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("recovery"), pytest.mark.timeout(1800)]

BUDGETS = (0.05, 0.1, 0.2, 0.3)  # of a trial each, by which it is named
METHODS = {
    "vanilla": {"placement": "colocated"},
    "trust_region": {"epsilon0": [*BUDGETS], "K": [5]},
}
LONG = {"steps": 30, "checkpoint_every": 5}  # so that there is a middle on a fast machine, too


def test_kills_leave_no_trace(tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path, METHODS, training=LONG, evaluation={"rescore": False})
    undisturbed, runs = tmp_path / "undisturbed", tmp_path / "runs"
    run_without_ray(experiment, undisturbed)
    shutil.copytree(undisturbed / "models", runs / "models")
    (vanilla,) = (runs / unit.name for unit in undisturbed.glob("tiny-vanilla-*"))
    for_driver, for_gcs, for_raylet, for_freezing = (
        trial_of(budget, undisturbed, runs) for budget in BUDGETS
    )

    kill_driver_midway([experiment, *alone(BUDGETS[0]), "--runs", runs], for_driver)
    kill_server_midway([experiment, *alone(BUDGETS[1]), "--runs", runs], for_gcs, "gcs_server")
    kill_server_midway([experiment, *alone(BUDGETS[2]), "--runs", runs], for_raylet, "raylet")

    process = start("submit", experiment, "--runs", runs)
    signal_trials_midway(process, {vanilla: signal.SIGKILL, for_freezing: signal.SIGSTOP})
    kill_evaluator_midway(process, runs)
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert "has been stopped for" in (read_log(for_freezing) or "")
    for unit in (vanilla, for_freezing):
        assert "attempt 2 of 3" in (read_log(unit) or "")
    assert contents(runs) == contents(undisturbed)


def test_a_kill_while_confirming_leaves_no_trace(tmp_path: Path) -> None:
    keys = {"training": LONG, "confirm": {"seeds": [1, 2]}, "runtime": {"keep": "best"}}
    experiment = write_experiment(
        tmp_path, {"vanilla": {}, "trust_region": {"epsilon0": [0.1], "K": [5]}}, **keys
    )
    undisturbed, runs = tmp_path / "undisturbed", tmp_path / "runs"
    run_without_ray(experiment, undisturbed)
    shutil.copytree(undisturbed / "models", runs / "models")
    (confirming,) = (runs / unit.name for unit in undisturbed.glob("tiny-trust_region-*-s2-*"))
    kill_driver_midway([experiment, "--runs", runs], confirming)
    process = start("submit", experiment, "--runs", runs)
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert "Confirmed on seeds that took no part in choosing" in out
    assert contents(runs) == contents(undisturbed)


def test_a_trial_goes_on_from_the_state_that_it_saved_between_checkpoints(tmp_path: Path) -> None:
    """Its only checkpoint is the last one: without saves the kill would repeat all steps."""
    training = LONG | {"checkpoint_every": LONG["steps"]}
    runtime = {"keep": "all", "save_every": "0.001s"}
    experiment = write_experiment(tmp_path, {"vanilla": {}}, training=training, runtime=runtime)
    undisturbed, runs = tmp_path / "undisturbed", tmp_path / "runs"
    run_without_ray(experiment, undisturbed)
    shutil.copytree(undisturbed / "models", runs / "models")
    (vanilla,) = (runs / unit.name for unit in undisturbed.glob("tiny-vanilla-*"))
    kill_driver_midway([experiment, "--runs", runs], vanilla)
    reached = json.loads((vanilla / "state.json").read_text())["next_step"]
    assert 0 < reached < LONG["steps"]
    assert not list(vanilla.glob("checkpoints/*"))
    process = start("submit", experiment, "--runs", runs)
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert f"training from step {reached} of {LONG['steps']}" in (read_log(vanilla) or "")
    assert contents(runs) == contents(undisturbed)
    assert not list(vanilla.glob("saved"))


def test_a_search_that_is_killed_asks_and_stops_the_same(tmp_path: Path) -> None:
    methods = {"trust_region": {"epsilon0": {"log": [0.05, 0.5]}, "K": [5, 10]}}
    keys = {
        "search": {"kind": "halving", "trials": 6, "reduction": 2},
        "axes": {"training.optimizer.lr": {"log": [1e-3, 1e-2]}},
        "training": {"steps": 20, "checkpoint_every": 5},  # rungs at 5 and 10
        "runtime": {"keep": "best"},
    }
    experiment = write_experiment(tmp_path, methods, **keys)
    undisturbed, runs = tmp_path / "undisturbed", tmp_path / "runs"
    shown = trb("submit", experiment, "--runs", undisturbed)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    steps = {unit.name: step_of(unit) for unit in undisturbed.glob("tiny-trust_region-*")}
    assert sorted(steps.values()) == [5, 5, 5, 10, 20, 20]

    shutil.copytree(undisturbed / "models", runs / "models")
    process = start("submit", experiment, "--runs", runs)
    wait_for(process, lambda: any(map(in_training_beyond_a_rung, runs.glob("tiny-trust_region-*"))))
    cluster, folder = cluster_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until_gone(cluster, folder)
    again = trb("submit", experiment, "--runs", runs)
    assert again.returncode == 0, again.stdout + again.stderr
    assert contents(runs) == contents(undisturbed)


def step_of(unit: Path) -> int:
    """The last committed step of a trial."""
    return json.loads((unit / "state.json").read_text())["next_step"]


def in_training_beyond_a_rung(unit: Path) -> bool:
    """Whether a trial that went on from the rung at step 5 has rows beyond it, and no commit there."""
    rows, state = unit / "metrics.jsonl", unit / "state.json"
    count = rows.read_text().count("\n") if rows.exists() else 0
    return count > 5 and state.exists() and step_of(unit) == 5


def trial_of(budget: float, undisturbed: Path, runs: Path) -> Path:
    """The run directory in `runs` of the trial with this budget."""
    (unit,) = undisturbed.glob(f"tiny-trust_region-epsilon0={budget}-*")
    return runs / unit.name


def alone(budget: float) -> list[str]:
    """What leaves no trial but the one with this budget."""
    return ["methods.vanilla=null", f"methods.trust_region.epsilon0=[{budget}]"]


def kill_driver_midway(arguments: list[str | Path], unit: Path) -> None:
    """SIGKILL `trb submit` while the trial is past its first commit and not done: its cluster ends
    with it.
    """
    process = start("submit", *arguments)
    wait_for(process, lambda: worker_midway(unit))
    cluster, folder = cluster_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until_gone(cluster, folder)


def kill_server_midway(arguments: list[str | Path], unit: Path, name: str) -> None:
    """SIGKILL a server that Ray cannot do without: the command says so in a line and ends, and all
    of Ray with it.
    """
    process = start("submit", *arguments)
    signal_trials_midway(
        process, {unit: signal.SIGSTOP}
    )  # or it may be done before the server is found
    cluster, folder = cluster_of(process.pid)
    (server,) = (
        each.pid for each in cluster if Path(os.fsdecode(command_line(each.pid)[0])).name == name
    )
    os.kill(server, signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == 1, out + err
    assert (out + err).count(f"Ray's {name} died; what was committed is safe") == 1
    assert "Traceback" not in out + err
    assert "GCS" not in out + err
    wait_until_gone(cluster, folder)


def signal_trials_midway(process: subprocess.Popen[str], signals: dict[Path, int]) -> None:
    """Send each trial's process its signal as soon as the trial is midway."""
    left = dict(signals)

    def send() -> bool:
        for unit in list(left):
            if worker := worker_midway(unit):
                os.kill(worker, left.pop(unit))
        return not left

    wait_for(process, send)


def kill_evaluator_midway(process: subprocess.Popen[str], runs: Path) -> None:
    """SIGKILL an evaluator while it samples a slice."""
    sampling = list[int]()

    def found() -> bool:
        sampling.extend(
            held.holder.pid for unit in runs.glob("tiny-*") for held in Claims(runs).held(unit.name)
        )
        return bool(sampling)

    wait_for(process, found)
    os.kill(sampling[0], signal.SIGKILL)


def wait_until_gone(cluster: set[Process], folder: Path) -> None:
    while cluster & set(processes().values()) or folder.exists():
        time.sleep(0.1)


def worker_midway(unit: Path) -> int | None:
    """Id of the process that holds the lease of a trial with a commit, rows beyond it, and no end."""
    state = unit / "state.json"
    if not state.exists() or (unit / "DONE").exists():
        return None
    committed = json.loads(state.read_text())["offsets"]["metrics.jsonl"]
    if not (unit / "metrics.jsonl").stat().st_size > committed > 0:
        return None
    holder = holder_of(unit.parent / ".locks" / f"{unit.name}.lock")
    return holder.pid if holder else None


def wait_for(process: subprocess.Popen[str], condition: Callable[[], object]) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
