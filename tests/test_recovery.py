"""After SIGKILLs of the driver and of a trial's process, every file equals those of an undisturbed sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.sweeps import Sweep, contents, start

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]


def test_kills_leave_no_trace(undisturbed: Sweep, tmp_path: Path) -> None:
    experiment, runs = undisturbed.experiment, tmp_path / "runs"
    kill_driver_midway(experiment, runs)
    process = start("submit", experiment, "--runs", runs)
    kill_a_trial_midway(process, runs)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    assert contents(runs) == contents(undisturbed.runs)


def kill_driver_midway(experiment: Path, runs: Path) -> None:
    """SIGKILL `trb submit` while a trial is past its first commit and not done."""
    process = start("submit", experiment, "--runs", runs)
    wait_for(process, lambda: midway(runs))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)


def kill_a_trial_midway(process: subprocess.Popen[str], runs: Path) -> None:
    """SIGKILL the process that holds the lease of a trial that is midway again."""
    wait_for(process, lambda: midway(runs) and holder(runs))
    pid = holder(runs)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def midway(runs: Path) -> Path | None:
    """A trial with a commit, rows beyond it, and no end."""
    for state in runs.glob("tiny-*/state.json"):
        unit = state.parent
        committed = json.loads(state.read_text())["offsets"]["metrics.jsonl"]
        beyond = (unit / "metrics.jsonl").stat().st_size > committed > 0
        if beyond and not (unit / "DONE").exists() and "-sft-" not in unit.name:
            return unit
    return None


def holder(runs: Path) -> int | None:
    """Process id in the lease of a trial that is midway."""
    unit = midway(runs)
    text = (runs / ".locks" / f"{unit.name}.lock").read_text() if unit else ""
    pid = json.loads(text)["pid"] if text else None
    return pid if pid and Path(f"/proc/{pid}").exists() else None


def wait_for(process: subprocess.Popen[str], condition: object) -> None:
    deadline = time.monotonic() + 150
    while not condition():  # type: ignore[operator]
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
