"""A whole sweep through the command, undisturbed: what a user sees and finds, and that it is the
same without Ray.
"""

from __future__ import annotations

import io
import json
import re
import secrets
import shutil
import signal
import socket
import time
from contextlib import redirect_stdout
from fnmatch import fnmatch
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.records.clock import token_rates
from orchestrator.records.machines import machine_rows
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import ProblemRecord
from tests.sockets import listening_addresses
from tests.sweeps import (
    FAKE_TRB,
    LONGEST_S,
    Sweep,
    cluster_of,
    command_line,
    contents,
    start,
    trb,
    write_experiment,
)
from tests.without_ray import run_without_ray

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]
METHODS = {
    "vanilla": {},
    "sft_warmup": {"K": [4]},
    "trust_region": {"epsilon0": [0.1], "K": [5], "placement": "split"},
}
SECRET = secrets.token_hex(
    16
)  # and not a word of this file, which a diff in provenance.json may quote
ONE_AT_A_TIME = "runtime.placement.cpus=2"  # on the two cores that tests need
WITHOUT_TRB = "methods.trust_region=null"
MORE = [
    "evaluation.rescore=true",
    "evaluation.benchmarks.arithmetic_short.n=3",
    "evaluation.benchmarks.arithmetic_long.n=1",
    "evaluation.benchmarks.arithmetic_long.limit=4",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Roles inline, and one trial whose roles are actors of their own; one sample for each problem;
    W&B's offline runs.

    Tests copy what they change.
    """
    folder = tmp_path_factory.mktemp("finished")
    experiment, runs = (
        # A measurement at the start would need a teacher from the start.
        write_experiment(folder, METHODS, evaluation={"rescore": False, "held_out": 0}),
        folder / "runs",
    )
    done = trb("submit", experiment, "--runs", runs, WANDB_MODE="offline")
    assert done.returncode == 0, done.stdout + done.stderr
    return Sweep(experiment, runs, done.stdout)


def here(*arguments: str | Path) -> tuple[object, str]:
    """Exit code and output of a command that starts no sweep, in this process."""
    with redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code, out.getvalue()


def units(experiment: Path, runs: Path, *overrides: str) -> list[dict]:
    code, shown = here("status", experiment, *overrides, "--runs", runs, "--json")
    assert code == 0, shown
    return json.loads(shown)["units"]


def test_every_unit_is_done_and_the_table_is_printed(finished: Sweep) -> None:
    experiment, runs, out = finished.experiment, finished.runs, finished.shown
    assert {unit["state"] for unit in units(experiment, runs)} == {"done"}
    assert "Vanilla" in out
    assert "SFT warmup" in out


def test_results_are_on_disk(finished: Sweep) -> None:
    runs = finished.runs
    names = {file.name for file in (runs / "results" / "sweep").iterdir()}
    assert {
        "table.md",
        "table.tex",
        "table.csv",
        "trajectories-tiny.png",
        "trajectories-tiny.pdf",
    } <= names
    assert {"experiment.yaml", "trials.csv"} <= names


def test_weights_can_be_read_by_whom_other_files_can(finished: Sweep) -> None:
    expected = finished.experiment.stat().st_mode
    weights = list(finished.runs.rglob("*.safetensors"))
    assert any("models" in file.parts for file in weights)
    assert any("checkpoints" in file.parts for file in weights)
    assert {file.stat().st_mode for file in weights} == {expected}


def test_the_end_names_the_commands_that_follow(finished: Sweep) -> None:
    for command in ("table", "report"):
        assert f"trb {command} {finished.experiment} --runs {finished.runs}" in finished.shown
    assert f"sync {finished.runs}/.wandb/wandb/offline-run-*" in finished.shown
    shown = [path.name for path in finished.runs.glob(".wandb/wandb/offline-run-*")]
    # A sweep that ends within a pulse has no row of its machine.
    of_machines = [name for name in shown if "-machine-" in name]
    assert len(of_machines) <= 1
    assert len(shown) - len(of_machines) == 6, "five units and the results"


def test_the_supervised_stage_feeds_its_trial(finished: Sweep) -> None:
    experiment, runs = finished.experiment, finished.runs
    by_kind = {unit["kind"]: unit["id"] for unit in units(experiment, runs)}
    trial = next(
        unit["id"] for unit in units(experiment, runs) if unit["label"].startswith("SFT warmup")
    )
    config = RunReader(runs, trial).config()
    assert config["unit"]["depends_on"] == [by_kind["sft"]]
    assert list(RunReader(runs, by_kind["sft"]).checkpoints()) == [4]


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
    assert log.count("trained\n") == 1


def test_the_log_says_where_roles_and_slices_run(finished: Sweep) -> None:
    unit = next(
        unit
        for unit in units(finished.experiment, finished.runs)
        if unit["label"].startswith("TRB")
    )
    log = RunReader(finished.runs, unit["id"]).log_text() or ""
    host = socket.gethostname()
    assert log.index(" teacher: process ") > log.index(" checkpoint of step 4 "), (
        "blended steps bring their scores"
    )
    for role in ("rollout", "teacher", "learner"):
        assert re.search(rf" {role}: process \d+ on {host}\n", log)
    assert re.search(rf" attempt 1 of 3: process \d+ on {host}, placement split\n", log)
    assert re.search(rf" in \d+\.\d s, process \d+ on {host}\n", log)


def test_the_machine_is_measured_beside_the_work(finished: Sweep) -> None:
    (folder,) = (finished.runs / ".machines").iterdir()
    measured = machine_rows(finished.runs, folder.name)
    (host,) = measured
    assert host == socket.gethostname()
    assert measured[host]
    assert all(row["memory_gib"] > 0 for row in measured[host].values())
    for unit in units(finished.experiment, finished.runs):
        pieces = token_rates(RunReader(finished.runs, unit["id"]))
        assert len(pieces) > unit["steps"] if unit["kind"] == "trial" else pieces
        assert all(place == host and rate > 0 for place, _, _, rate in pieces)


def test_submitting_again_does_nothing(finished: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    experiment, runs = finished.experiment, finished.runs
    before = contents(runs)
    code, shown = here("submit", experiment, "--runs", runs)
    assert code == 0
    assert "everything is done" in shown
    assert contents(runs) == before


def test_with_ray_and_without_it_come_the_same_bytes(finished: Sweep, tmp_path: Path) -> None:
    """Models made in processes of their own, two trials at a time, roles as actors: here all is one
    process.
    """
    run_without_ray(finished.experiment, tmp_path / "runs")
    assert contents(finished.runs) == contents(tmp_path / "runs")


def test_a_limit_of_hours_stops_at_a_commit_and_says_how_to_go_on(
    finished: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody has measured begins; the first commit shows that it took more than a thousandth
    of a second.
    """
    monkeypatch.setenv("WANDB_MODE", "disabled")
    runs = tmp_path / "runs"
    for name in ("models", *(unit.name for unit in finished.runs.glob("tiny-base_eval-*"))):
        shutil.copytree(
            finished.runs / name, runs / name, ignore=shutil.ignore_patterns("timing.jsonl")
        )
    overrides = [WITHOUT_TRB, "methods.sft_warmup=null", ONE_AT_A_TIME]
    command = [
        "submit",
        finished.experiment,
        *overrides,
        "--runs",
        runs,
        "--max-gpu-hours",
        "0.0000003",
    ]
    first = trb(*command, command=FAKE_TRB)
    assert "starting Ray" in first.stdout
    code, again = here(*command)
    assert "starting Ray" not in again
    for returned, shown in ((first.returncode, first.stdout), (code, again)):
        assert returned == 3, shown + first.stderr
        (line,) = (
            line for line in shown.splitlines() if "stopped at --max-gpu-hours 3e-07" in line
        )
        assert "core-hours spent" in line
        assert line.endswith(
            f"trb submit {finished.experiment} {' '.join(overrides)} --runs {runs}"
        )
    (vanilla,) = (
        unit for unit in units(finished.experiment, runs, WITHOUT_TRB) if unit["label"] == "Vanilla"
    )
    assert (vanilla["state"], vanilla["step"]) in (("interrupted", 2), ("queued", 0))


def test_more_benchmarks_and_samples_evaluate_and_do_not_retrain(
    finished: Sweep, tmp_path: Path
) -> None:
    """A benchmark is added, n raised, the best sampled anew; it comes out as if all were asked for
    at once.
    """
    runs, at_once = tmp_path / "runs", tmp_path / "at once"
    shutil.copytree(finished.runs, runs)
    before = contents(runs)
    done = trb("submit", finished.experiment, WITHOUT_TRB, *MORE, "--runs", runs)
    assert done.returncode == 0, done.stderr
    after = contents(runs)
    assert {path: after[path] for path in before} == before
    new = {path for path in after if path not in before}
    assert all("/evals/" in path for path in new)
    assert (
        sum("/evals/arithmetic_long-" in path for path in new) >= 1 + 2 * 5
    )  # untrained, and two trials' checkpoints
    shutil.copytree(finished.runs / "models", at_once / "models")
    run_without_ray(finished.experiment, at_once, WITHOUT_TRB, *MORE)
    assert evaluations(runs, "*-trust_region-*") == evaluations(at_once)
    asked_at_once = {path: sha for path, sha in contents(at_once).items() if "/evals/" not in path}
    trained = {path: after.get(path) for path in asked_at_once if not path.endswith("/config.json")}
    assert trained.items() <= asked_at_once.items()


def evaluations(
    runs: Path, without: str = ""
) -> dict[tuple[str, str, str], list[ProblemRecord] | None]:
    """What all evaluations of all checkpoints come to, however they were cut into slices."""
    found = {}
    for folder in runs.glob("*/evals/*/step_*"):
        unit, evaluation_id, step = folder.parents[2].name, folder.parent.name, folder.name
        if not fnmatch(unit, without):
            found[unit, evaluation_id, step] = RunReader(runs, unit).evaluation(
                evaluation_id, int(step[5:])
            )
    return found


def test_impossible_placement_is_refused_at_once(finished: Sweep, tmp_path: Path) -> None:
    shutil.copytree(finished.runs / "models", tmp_path / "runs" / "models")
    done = trb(
        "submit", finished.experiment, "runtime.placement.cpus=4096", "--runs", tmp_path / "runs"
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "4096 CPU" in done.stderr


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(finished: Sweep, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(finished.runs, runs)
    (there,) = runs.glob("tiny-vanilla-*")
    overrides = [WITHOUT_TRB, "methods.sft_warmup=null", "training.steps=2000", ONE_AT_A_TIME]
    asked = ["submit", finished.experiment, *overrides, "--runs", runs]
    process = start(*asked, command=FAKE_TRB, AWS_SECRET_ACCESS_KEY=SECRET)
    while not [unit for unit in runs.glob("tiny-vanilla-*/state.json") if unit.parent != there]:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    assert_loopback_only(process.pid)
    assert_kept_secret(process.pid, runs)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 130
    assert out.count("stopping at the last commit; Ctrl-C again stops at once\n") == 1
    assert "go on with: trb submit" in out
    assert "Traceback" not in out + err
    states = {unit["kind"]: unit["state"] for unit in units(finished.experiment, runs, *overrides)}
    assert states == {"base_eval": "done", "trial": "interrupted"}


def assert_loopback_only(pid: int) -> None:
    """Nothing of a private sweep can be reached from elsewhere."""
    addresses = listening_addresses(pid)
    assert addresses
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert addresses <= loopback


def assert_kept_secret(pid: int, runs: Path) -> None:
    """Of a driver's environment only its processes know: no command line shows it, and no file has
    it.
    """
    cluster, folder = cluster_of(pid)
    lines = [line for each in cluster for line in command_line(each.pid)]
    assert any(b"ray::" in line or b"default_worker" in line for line in lines), (
        "workers are looked at, too"
    )
    assert not [line for line in lines if SECRET.encode() in line]
    files = [file for top in (folder, runs) for file in top.rglob("*") if file.is_file()]
    assert any(file.name == "runtime_env_agent.log" for file in files)
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]
