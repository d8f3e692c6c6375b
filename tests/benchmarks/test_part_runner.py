"""Parts in processes: what a hang, a failure, Ctrl-C and a kill leave behind, and what the next
call does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.part_runner import DeviceUse, Part, Result, Runner, ask_driver
from orchestrator.liveness.driver_death import processes
from tests.sweeps import ROOT

PLACE = {"card": "a card", "torch": "2.13.0"}
LONG_S = 60.0
# The path for the numbers is $0. Engines have a session of their own and print into a file without
# a name: so does this child.
QUICK = 'echo working; echo "{\\"speed\\": 2.5}" > "$0"'
HANGS = """
file=$(mktemp)
exec 3> "$file"
rm "$file"
setsid sh -c 'echo loading; exec sleep 600' >&3 &
echo "child $!"
echo '{"before": 1.0}' > "$0"
sleep 600
"""
FAILS = 'echo "tensors: 7"; echo "torch.OutOfMemoryError: no memory"; echo "an engine says goodbye"; exit 3'
# A part as `make gpu-proof` has it, which ends with its runner.
WAITS = """
import os, sys, time
from pathlib import Path
from benchmarks.part_runner import prepare_part, write_so_far
prepare_part()
write_so_far(Path(sys.argv[1]), {"pid": os.getpid()})
time.sleep(600)
"""
RUNNER = """
import json, sys
from pathlib import Path
from benchmarks.part_runner import Part, Runner
folder, place, parts = json.loads(sys.argv[1])
Runner(Path(folder), place, "one", print, 600.0).run(Part(*part) for part in parts)
"""


def part(name: str, script: str, limit_s: float = LONG_S, needed: bool = False) -> Part:
    return Part(name, limit_s, ["sh", "-c", script], needed)


def run(
    folder: Path, *parts: Part, again: tuple[str, ...] = (), total_s: float = 600.0
) -> tuple[Runner, list[str]]:
    said: list[str] = []
    runner = Runner(folder, PLACE, "one", said.append, total_s)
    runner.run(parts, again)
    return runner, said


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def known(runner: Runner, name: str) -> Result:
    result = runner.result(name)
    assert result is not None
    return result


def test_a_part_that_hangs_is_ended_with_its_children_and_the_next_one_runs(tmp_path: Path) -> None:
    runner, said = run(tmp_path, part("hangs", HANGS, limit_s=1.0), part("quick", QUICK))
    hung = known(runner, "hangs")
    assert hung.failure == f"ended at its limit of 1 s — {tmp_path / 'hangs.log'}"
    assert hung.measured == {"before": 1.0}
    log = runner.log("hangs").read_text()
    child = int(log.split()[1])
    assert child not in processes()
    assert f"--- process {child} has printed\nloading\n" in log
    assert known(runner, "quick").measured == {"speed": 2.5}
    assert said[0].startswith("hangs: ")
    assert "FAILED" in said[0]


def test_a_part_that_hangs_leaves_the_stacks_of_its_threads_in_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITS]
    runner, _ = run(tmp_path, Part("waits", 5.0, command))
    assert "pid" in known(runner, "waits").measured
    assert "most recent call first" in runner.log("waits").read_text()


def test_a_part_that_fails_keeps_its_log_and_is_measured_again(tmp_path: Path) -> None:
    runner, _ = run(tmp_path, part("fails", FAILS), part("quick", QUICK))
    assert (
        known(runner, "fails").failure
        == f"torch.OutOfMemoryError: no memory — {tmp_path / 'fails.log'}"
    )
    assert runner.log("fails").read_text().splitlines()[0] == "tensors: 7"
    runner, said = run(tmp_path, part("fails", QUICK), part("quick", FAILS))
    assert known(runner, "fails").failure is None
    assert said[1] == "quick: measured before"
    runner, _ = run(tmp_path, part("quick", FAILS), again=("quick",))
    assert known(runner, "quick").failure is not None


def test_nothing_is_begun_after_a_part_that_all_others_need_or_when_the_time_is_over(
    tmp_path: Path,
) -> None:
    runner, said = run(tmp_path, part("models", FAILS, needed=True), part("quick", QUICK))
    assert runner.result("quick") is None
    assert len(said) == 1
    runner, said = run(tmp_path, part("quick", QUICK), total_s=0.0)
    assert runner.result("quick") is None
    assert said == ["quick: not begun, the 0 minutes are over"]


def test_results_of_another_card_or_torch_do_not_count_but_those_of_another_commit_do(
    tmp_path: Path,
) -> None:
    run(tmp_path, part("quick", QUICK))
    assert Runner(tmp_path, PLACE, "two", print, 0.0).result("quick") is not None
    assert Runner(tmp_path, PLACE | {"card": "another"}, "one", print, 0.0).result("quick") is None


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_runner_that_is_killed_or_interrupted_loses_only_the_part_that_runs(
    tmp_path: Path, how: int
) -> None:
    parts = [
        ("quick", LONG_S, ["sh", "-c", QUICK]),
        ("waits", LONG_S, [sys.executable, "-c", WAITS]),
    ]
    command = [sys.executable, "-c", RUNNER, json.dumps([str(tmp_path), PLACE, parts])]
    runner = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    so_far = tmp_path / "waits.so_far.json"
    wait_until(so_far.exists)
    pid = json.loads(so_far.read_text())["pid"]
    os.kill(runner.pid, how)
    runner.wait()
    wait_until(lambda: pid not in processes())
    again, said = run(tmp_path, part("quick", FAILS), part("waits", QUICK))
    assert said[0] == "quick: measured before"
    assert known(again, "waits").measured == {"speed": 2.5}
    assert not list(tmp_path.glob("*so_far*"))


def test_the_peak_of_the_device_is_the_largest_that_its_driver_has_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        "  *memory.used*--loop-ms*) for mib in 1024 '[N/A]' 3072 2048; do echo $mib; done; exec sleep 600;;\n"
        "  *) echo 'NVIDIA H100 80GB HBM3, 580.65.06';;\nesac\n"
    )
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert ask_driver("name", "driver_version") == ["NVIDIA H100 80GB HBM3", "580.65.06"]
    with DeviceUse() as use:
        wait_until(lambda: use.peak_gib == 3.0)
        use.forget()
        assert use.peak_gib is None
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert ask_driver("name") is None
    with DeviceUse() as use:
        assert use.peak_gib is None
