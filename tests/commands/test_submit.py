"""What `trb submit` says before it starts, and as it is stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.commands.submit import company
from orchestrator.records.writer import RunWriter
from tests import fake_runs
from tests.sweeps import ROOT


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_it_names_another_process_at_work(tmp_path: Path, taken: int) -> None:
    _, units = fake_runs.quickstart()
    runs = [RunWriter(tmp_path, unit.id) for unit in units[:taken]]
    lines = company(units, tmp_path)
    assert len(lines) == min(taken, 1)
    if taken:
        assert f"works on {taken} of them: each is waited for, for up to 2 min" in lines[0]
    for run in runs:
        run.close()
    assert company(units, tmp_path) == []


# A driver whose sweep does not stop: Python gives it no KeyboardInterrupt, as while a call of Ray's
# lasts.
STUBBORN = """
import signal, sys, threading
from pathlib import Path
from orchestrator.commands.detach import lasting_console
from orchestrator.commands.submit import Submission, _driving
from orchestrator.selection.study import Study
from tests.fake_runs import quickstart

signal.signal(signal.SIGINT, lambda *_: None)
experiment, units = quickstart()
runs = Path(sys.argv[1])
job = Submission(Study(experiment, units, runs), None, "trb submit it", lasting_console(runs))
with _driving(job):
    job.say("runs")
    threading.Event().wait()
"""


def test_ctrl_c_is_answered_while_the_sweep_stops_and_ends_it_the_second_time(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN, tmp_path],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "runs\n"
        driver.send_signal(signal.SIGINT)
        assert (
            driver.stdout.readline() == "stopping at the last commit; Ctrl-C again stops at once\n"
        )
        driver.send_signal(signal.SIGINT)
        assert driver.stdout.read() == "stopped at once; go on with: trb submit it\n"
    assert driver.returncode == 130
