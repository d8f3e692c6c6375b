"""Nothing of a private cluster outlives its driver, and nothing else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.liveness.deaths import Process, members, processes, remaining
from tests.sweeps import ROOT

# A driver with a server of Ray's that names its folder, a worker of that server which names
# nothing, and a child that has nothing to do with Ray. It prints their process ids.
DRIVER = """
import subprocess, sys
from pathlib import Path
from orchestrator.liveness.deaths import ends_with_driver
from orchestrator.liveness.processes import scratch_folder

sleep = "import time; time.sleep(3600)"
server = f"import subprocess, sys; worker = subprocess.Popen([sys.executable, '-c', {sleep!r}]); "
server += "print(worker.pid, flush=True); worker.wait()"
with scratch_folder() as scratch, ends_with_driver(scratch):
    arguments = [sys.executable, "-c", server, "/somewhere/ray/core/raylet", f"--session-dir={scratch}/session"]
    raylet = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    other = subprocess.Popen([sys.executable, "-c", sleep])
    print(scratch, raylet.pid, raylet.stdout.readline().strip(), other.pid, flush=True)
    sys.stdin.readline()
print("over", flush=True)
sys.stdin.readline()
other.kill()
"""
STRANGER = [
    sys.executable,
    "-c",
    "import time; time.sleep(3600)",
    "/somewhere/ray/core/raylet",
    "--session-dir=/tmp/else/s",
]


class Driver:
    """The driver as a process; `scratch` and the ids of what it has started."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER], cwd=ROOT, stdin=pipe, stdout=pipe, text=True
        )
        scratch, *ids = self.line().split()
        self.scratch = Path(scratch)
        self.raylet, self.worker, self.other = map(int, ids)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.process.kill()
    with suppress(ProcessLookupError):  # the process beside it may have had no time to learn of it
        os.kill(driver.other, signal.SIGKILL)
    driver.process.communicate()


def until_gone(*pids: int) -> None:
    while any(pid in processes() for pid in pids):
        time.sleep(0.05)


def test_a_killed_driver_takes_its_cluster_with_it(driver: Driver) -> None:
    stranger = subprocess.Popen(STRANGER)
    try:
        driver.process.kill()
        until_gone(driver.raylet, driver.worker)
        while driver.scratch.exists():
            time.sleep(0.05)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_driver_that_goes_on_keeps_what_is_not_of_the_cluster(driver: Driver) -> None:
    driver.go_on()
    assert driver.line() == "over"
    alive = processes()
    assert driver.other in alive
    assert driver.raylet not in alive
    assert driver.worker not in alive
    assert not driver.scratch.exists()
    driver.go_on()
    driver.process.wait()


def test_members_are_descendants_and_named_servers() -> None:
    alive = {
        pid: Process(pid, 0, parent) for pid, parent in ((2, 1), (3, 2), (4, 3), (5, 1), (6, 5))
    }
    assert {process.pid for process in members(alive, Path("/nowhere"), 2)} == {3, 4}
    assert members(alive, Path("/nowhere"), None) == set()


def test_what_lost_its_parent_is_still_known() -> None:
    known = {
        Process(3, born=70, parent=2),
        Process(4, born=71, parent=3),
        Process(5, born=72, parent=3),
    }
    alive = {
        4: Process(4, born=71, parent=1),
        5: Process(5, born=99, parent=1),
        6: Process(6, born=80, parent=1),
    }
    assert {process.pid for process in remaining(known, alive, Path("/nowhere"))} == {4}
