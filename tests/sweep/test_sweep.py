"""A whole sweep through the command, undisturbed: what a user sees and finds."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest

from orchestrator.records.rundir import RunReader
from tests.sockets import listening_addresses
from tests.sweeps import LONGEST_S, Sweep, contents, start, trb, write_experiment

pytestmark = [pytest.mark.ray]
# What one sweep's tests share is made beside what the other's share: a group is one test process.
ON_FINISHED, ON_UNDISTURBED = pytest.mark.xdist_group("finished"), pytest.mark.xdist_group("undisturbed")
MORE = [
    "evaluation.benchmarks.arithmetic_short.n=3",
    "evaluation.benchmarks.arithmetic_long.n=1",
    "evaluation.benchmarks.arithmetic_long.limit=4",
]


def units(experiment: Path, runs: Path) -> list[dict]:
    done = trb("status", experiment, "--runs", runs, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["units"]


@ON_FINISHED
def test_every_unit_is_done_and_the_table_is_printed(finished: Sweep) -> None:
    experiment, runs, out = finished.experiment, finished.runs, finished.shown
    assert {unit["state"] for unit in units(experiment, runs)} == {"done"}
    assert "Vanilla" in out
    assert "SFT warmup" in out


@ON_FINISHED
def test_results_are_on_disk(finished: Sweep) -> None:
    runs = finished.runs
    names = {file.name for file in (runs / "results" / "sweep").iterdir()}
    assert {"table.md", "table.tex", "table.csv", "trajectories-tiny.png", "trajectories-tiny.pdf"} <= names
    assert {"experiment.yaml", "trials.csv"} <= names


@ON_FINISHED
def test_the_end_names_the_commands_that_follow(finished: Sweep) -> None:
    for command in ("report", "figures"):
        assert f"trb {command} {finished.experiment} --runs {finished.runs}" in finished.shown


@ON_FINISHED
def test_the_supervised_stage_feeds_its_trial(finished: Sweep) -> None:
    experiment, runs = finished.experiment, finished.runs
    by_kind = {unit["kind"]: unit["id"] for unit in units(experiment, runs)}
    trial = next(unit["id"] for unit in units(experiment, runs) if unit["label"].startswith("SFT warmup"))
    config = RunReader(runs, trial).config()
    assert config["unit"]["depends_on"] == [by_kind["sft"]]
    assert list(RunReader(runs, by_kind["sft"]).checkpoints()) == [4]


@ON_FINISHED
def test_run_directory_holds_what_the_contract_says(finished: Sweep) -> None:
    experiment, runs = finished.experiment, finished.runs
    unit = next(unit for unit in units(experiment, runs) if unit["label"] == "Vanilla")
    run = RunReader(runs, unit["id"])
    assert [row["step"] for row in run.metrics()] == list(range(10))
    rollouts = list(run.rollouts())
    assert len(rollouts) == 10 * 4 * 2
    assert sum("text" in row for row in rollouts) == 10 * 4
    assert list(run.checkpoints()) == [2, 4, 6, 8, 10]
    assert not list(run.path.rglob("learner.safetensors"))
    assert run.provenance()["versions"]["torch"]
    log = run.log_text() or ""
    assert "attempt 1 of 3" in log
    assert log.count("checkpoint of step") == 5
    assert log.count("evaluating step 10: 6 responses of arithmetic_short") == 1
    assert log.rstrip().endswith("nothing more to do for now")


@ON_FINISHED
def test_submitting_again_does_nothing(finished: Sweep) -> None:
    experiment, runs = finished.experiment, finished.runs
    before = contents(runs)
    done = trb("submit", experiment, "--runs", runs)
    assert done.returncode == 0
    assert "everything is done" in done.stdout
    assert contents(runs) == before


@ON_UNDISTURBED
def test_more_benchmarks_and_samples_evaluate_and_do_not_retrain(
    finished: Sweep, undisturbed: Sweep, tmp_path: Path
) -> None:
    """A benchmark is added and n raised; what comes out equals the sweep that asked for n = 3 at once."""
    runs = tmp_path / "runs"
    shutil.copytree(finished.runs, runs)
    before = contents(runs)
    done = trb("submit", finished.experiment, *MORE, "--runs", runs)
    assert done.returncode == 0, done.stderr
    after = contents(runs)
    changed = {path for path in before if after[path] != before[path]}
    assert changed == {path for path in before if "/evals/arithmetic_short-" in path}
    new = {path for path in after if path not in before}
    assert all("/evals/arithmetic_long-" in path for path in new)
    assert len(new) == 1 + 3 * 5  # the base model, and five checkpoints of three trials
    reference = contents(undisturbed.runs)
    shared = [path for path in changed if path in reference]
    assert len(shared) >= 1 + 5
    assert {path: after[path] for path in shared} == {path: reference[path] for path in shared}


@ON_UNDISTURBED
def test_roles_as_actors_give_the_same_bytes_as_inline(finished: Sweep, undisturbed: Sweep) -> None:
    """Vanilla ran inline here and `colocated` there: the same unit, the same training files."""
    inline, colocated = contents(finished.runs), contents(undisturbed.runs)
    names = ("metrics.jsonl", "rollouts.jsonl", "model.safetensors", "state.json")
    files = [path for path in inline if "-vanilla-" in path and path.endswith(names)]
    assert len(files) == 3 + 5
    assert {path: inline[path] for path in files} == {path: colocated[path] for path in files}


@ON_FINISHED
def test_impossible_placement_is_refused_at_once(tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path, {"vanilla": {}})
    done = trb("submit", experiment, "runtime.placement.cpus=4096", "--runs", tmp_path / "runs")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "4096 CPU" in done.stderr


@ON_FINISHED
def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tmp_path: Path) -> None:
    experiment, runs = write_experiment(tmp_path, {"vanilla": {}}), tmp_path / "runs"
    process = start("submit", experiment, "training.steps=2000", "--runs", runs)
    while not list(runs.glob("tiny-vanilla-*/state.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    assert_loopback_only(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 130
    assert "go on with: trb submit" in out
    assert "Traceback" not in out + err
    states = {unit["kind"]: unit["state"] for unit in units_with(experiment, runs, "training.steps=2000")}
    assert states["trial"] == "interrupted"


def assert_loopback_only(pid: int) -> None:
    """Nothing of a private sweep can be reached from elsewhere."""
    addresses = listening_addresses(pid)
    assert addresses
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert addresses <= loopback


def units_with(experiment: Path, runs: Path, override: str) -> list[dict]:
    return json.loads(trb("status", experiment, override, "--runs", runs, "--json").stdout)["units"]
