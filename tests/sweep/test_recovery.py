"""Whatever dies or freezes on the way, every file equals those of an undisturbed sweep in the end.

All waits end on conditions; only the limit of a whole test says that something hangs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.records.lease import holder_of
from orchestrator.records.log import read_log
from orchestrator.sweep.guard import Process, members, processes
from tests.sweeps import Sweep, contents, start

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray"), pytest.mark.timeout(1800)]


def test_kills_leave_no_trace(undisturbed: Sweep, tmp_path: Path) -> None:
    experiment, runs = undisturbed.experiment, tmp_path / "runs"
    kill_driver_midway(experiment, runs)
    kill_cluster_midway(experiment, runs)
    process = start("submit", experiment, "--runs", runs)
    signal_a_trial_midway(process, runs, signal.SIGKILL)
    stopped = signal_a_trial_midway(process, runs, signal.SIGSTOP)
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert "has been stopped for" in (read_log(stopped) or "")
    assert "attempt 2 of 3" in (read_log(stopped) or "")
    assert contents(runs) == contents(undisturbed.runs)


def kill_driver_midway(experiment: Path, runs: Path) -> None:
    """SIGKILL `trb submit` while a trial is past its first commit and not done: its cluster ends with it."""
    process = start("submit", experiment, "--runs", runs)
    wait_for(process, lambda: holder(midway(runs)))
    cluster, folder = cluster_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    while cluster & set(processes().values()) or folder.exists():
        time.sleep(0.1)


def kill_cluster_midway(experiment: Path, runs: Path) -> None:
    """SIGKILL the server that Ray cannot do without: the command says so in a line, and ends."""
    process = start("submit", experiment, "--runs", runs)
    wait_for(process, lambda: holder(midway(runs)))
    cluster, folder = cluster_of(process.pid)
    (server,) = (each.pid for each in cluster if b"gcs_server" in command_line(each.pid).split(b"\0")[0])
    os.kill(server, signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == 1, out + err
    assert (out + err).count("Ray's gcs_server died; what was committed is safe") == 1
    assert "Traceback" not in out + err
    assert "GCS" not in out + err
    while cluster & set(processes().values()) or folder.exists():
        time.sleep(0.1)


def signal_a_trial_midway(process: subprocess.Popen[str], runs: Path, number: int) -> Path:
    """Send a signal to the process that holds the lease of a trial that is midway; the trial's run directory."""
    wait_for(process, lambda: holder(midway(runs)))
    unit = midway(runs)
    pid = holder(unit)
    assert unit is not None
    assert pid is not None
    os.kill(pid, number)
    wait_for(process, lambda: holder(unit) != pid)
    return unit


def cluster_of(driver: int) -> tuple[set[Process], Path]:
    """The processes that a driver has started, without its guard, and the folder of its cluster."""
    found = members(processes(), Path("/nowhere"), driver)
    guards = {each for each in found if b"orchestrator.sweep.guard" in command_line(each.pid)}
    (guard,) = guards
    return found - guards, Path(os.fsdecode(command_line(guard.pid).split(b"\0")[-2]))


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def midway(runs: Path) -> Path | None:
    """A trial with a commit, rows beyond it, and no end."""
    for state in runs.glob("tiny-*/state.json"):
        unit = state.parent
        committed = json.loads(state.read_text())["offsets"]["metrics.jsonl"]
        beyond = (unit / "metrics.jsonl").stat().st_size > committed > 0
        if beyond and not (unit / "DONE").exists() and "-sft-" not in unit.name:
            return unit
    return None


def holder(unit: Path | None) -> int | None:
    """Process id in the lease of a unit, if it still runs."""
    found = holder_of(unit.parent / ".locks" / f"{unit.name}.lock") if unit else None
    return found.pid if found else None


def wait_for(process: subprocess.Popen[str], condition: Callable[[], object]) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
