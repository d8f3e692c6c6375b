"""One process has a unit, a slice or a sweep: on one host the kernel decides, between hosts a
heartbeat.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from orchestrator.errors import LeaseHeld
from orchestrator.liveness.leases import (
    HEARTBEAT_S,
    STALE_AFTER_S,
    Claims,
    Driving,
    Lease,
    drivers_of,
    holder_of,
)
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import Slice
from orchestrator.records.writer import RunWriter
from tests.sweeps import ROOT

HOLD = """
import sys
from pathlib import Path
from orchestrator.errors import LeaseHeld
from orchestrator.liveness import leases
if len(sys.argv) > 2:
    leases.HEARTBEAT_S = float(sys.argv[2])
try:
    held = leases.Lease(Path(sys.argv[1]))
except LeaseHeld as error:
    print(error, flush=True)
else:
    print("held", flush=True)
    sys.stdin.read()
    held.release()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".locks" / "unit.lock"


def started(path: Path, *arguments: str) -> subprocess.Popen[str]:
    """A process that takes the lease and holds it until its stdin ends."""
    command = [sys.executable, "-c", HOLD, str(path), *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_only_one_of_two_processes_gets_it(path: Path) -> None:
    with started(path) as first:
        assert answer(first) == "held"
        with started(path) as second:
            assert answer(second).startswith(f"unit is being run by process {first.pid} on ")
            second.communicate()
        assert holder_of(path) is not None
        first.communicate()
    assert holder_of(path) is None


def test_only_one_of_many_that_start_at_once_gets_it(path: Path) -> None:
    processes = [started(path) for _ in range(4)]
    answers = [answer(process) for process in processes]
    for process in processes:
        process.communicate()
    assert answers.count("held") == 1


def test_a_kill_releases_it(path: Path) -> None:
    with started(path) as holder:
        assert answer(holder) == "held"
        with pytest.raises(LeaseHeld):
            Lease(path)
        holder.kill()
    assert holder_of(path) is None
    Lease(path).release()


def test_looking_takes_nothing_away(path: Path) -> None:
    assert holder_of(path) is None
    assert not path.exists()
    lease = Lease(path)
    holder = holder_of(path)
    assert holder is not None
    assert holder.is_here
    assert json.loads(path.read_text())["pid"] == holder.pid == os.getpid()
    lease.release()


def test_one_writer_for_a_run_directory(tmp_path: Path) -> None:
    run = RunWriter(tmp_path, "unit")
    run.append("metrics.jsonl", [{"step": 0}])
    with pytest.raises(LeaseHeld, match=str(os.getpid())):
        RunWriter(tmp_path, "unit")
    assert RunReader(tmp_path, "unit").running
    assert run.metrics() == [{"step": 0}]
    run.close()
    RunWriter(tmp_path, "unit").close()


# --- a holder on another host: seen only through the file ---


def leave_heartbeat(path: Path, age_s: float, text: str = '{"host": "another", "pid": 7}') -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    beat = time.time() - age_s
    os.utime(path, (beat, beat))


@pytest.mark.parametrize("age_s", [0.0, HEARTBEAT_S, 2 * HEARTBEAT_S])
def test_a_fresh_heartbeat_of_another_host_refuses(age_s: float, path: Path) -> None:
    leave_heartbeat(path, age_s)
    assert holder_of(path) is not None
    with pytest.raises(LeaseHeld, match="unit is being run by process 7 on another"):
        Lease(path)
    assert json.loads(path.read_text()) == {"host": "another", "pid": 7}


def test_a_stale_heartbeat_of_another_host_does_not(path: Path) -> None:
    leave_heartbeat(path, STALE_AFTER_S + 1)
    assert holder_of(path) is None
    Lease(path).release()


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_the_clock_of_this_host_does_not_matter(
    ahead_s: float, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_heartbeat(path, HEARTBEAT_S)
    leave_heartbeat(path.parent / "other" / "dead.lock", STALE_AFTER_S + 1)
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + ahead_s)
    assert holder_of(path) is not None
    assert holder_of(path.parent / "other" / "dead.lock") is None


@pytest.mark.parametrize("text", ["", '{"host": "ano'])
def test_a_torn_note_holds_nothing(text: str, path: Path) -> None:
    leave_heartbeat(path, 0.0, text)
    assert holder_of(path) is None
    Lease(path).release()


def test_the_holder_renews_its_heartbeat(path: Path) -> None:
    with started(path, "0.02") as holder:
        assert answer(holder) == "held"
        os.utime(path, (1.0, 1.0))
        deadline = time.monotonic() + 20
        while path.stat().st_mtime < time.time() - 60:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        holder.communicate()


# --- a holder in another container of this host: its number says nothing here ---


def test_a_process_of_another_container_is_believed_while_it_beats(path: Path) -> None:
    note = json.dumps({"host": socket.gethostname(), "pid": 2**22 + 1, "space": "pid:[1]"})
    leave_heartbeat(path, 1, note)
    holder = holder_of(path)
    assert holder is not None
    assert not holder.is_here
    os.utime(path, (0, 0))
    assert holder_of(path) is None


def test_its_lease_is_free_when_its_lock_is(path: Path) -> None:
    """The kernel of the host tells, whatever the note says."""
    leave_heartbeat(
        path, 1, json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "space": "pid:[1]"})
    )
    Lease(path).release()


# --- claims on slices ---

PART = Slice(0, 4, 0, 10, 10).name
CLAIM = """
import sys, time
from pathlib import Path
from orchestrator.liveness.leases import Claims
claim = Claims(Path(sys.argv[1])).take("unit", "short-1", 20, sys.argv[2])
print(claim is not None, flush=True)
time.sleep(3600)
"""


def claimant(runs: Path) -> subprocess.Popen[str]:
    """A process that holds the claim on PART, if it got it."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(runs), PART], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def test_one_process_has_a_slice_and_a_dead_one_leaves_it(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    for attempt in (1, 2):
        with claimant(tmp_path) as process:
            assert claims.take("unit", "short-1", 20, PART) is None
            (held,) = claims.held("unit")
            assert (held.evaluation_id, held.step, held.holder.pid) == ("short-1", 20, process.pid)
            assert held.holder.attempt == attempt
            process.kill()
    assert claims.held("unit") == []
    claim = claims.take("unit", "short-1", 20, PART)
    assert claim is not None
    assert claim.attempt == 3
    claim.release(remove=True)
    assert list((tmp_path / ".locks" / "unit").iterdir()) == []


def test_a_claim_that_was_let_go_counts_no_attempt(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    for _ in range(3):
        claim = claims.take("unit", "short-1", 20, PART)
        assert claim is not None
        assert claim.attempt == 1
        claim.release(remove=True)


def test_lost_claims_are_forgotten_and_held_ones_are_not(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    with claimant(tmp_path) as process:
        claims.forget_lost("unit")
        assert len(claims.held("unit")) == 1
        process.kill()
    claims.forget_lost("unit")
    claim = claims.take("unit", "short-1", 20, PART)
    assert claim is not None
    assert claim.attempt == 1
    claim.release(remove=True)


def test_other_slices_are_other_claims(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    parts = [
        ("short-1", 20, PART),
        ("short-1", 40, PART),
        ("long-2", 20, PART),
        ("short-1", 20, Slice(4, 8, 0, 10, 10).name),
    ]
    taken = [claims.take("unit", *which) for which in parts]
    assert None not in taken
    for claim in taken:
        assert claim is not None
        claim.release(remove=True)


# --- drivers of sweeps ---


def test_a_driver_is_found_and_stops_when_asked(tmp_path: Path) -> None:
    asked = threading.Event()
    driving = Driving(tmp_path, "sweep", asked.set)
    (driver,) = drivers_of(tmp_path, "sweep")
    assert driver.holder.pid == os.getpid()
    assert driver.runs
    driver.ask_to_stop()
    assert asked.wait(timeout=60)
    driving.end()
    assert not driver.runs
    assert drivers_of(tmp_path, "sweep") == []
    assert not any((tmp_path / ".locks" / "submits").iterdir())


def test_another_experiments_driver_is_left_alone(tmp_path: Path) -> None:
    driving = Driving(tmp_path, "sweep.of.mine", lambda: None)
    assert drivers_of(tmp_path, "sweep") == []
    assert drivers_of(tmp_path, "sweep.of") == []
    assert len(drivers_of(tmp_path, "sweep.of.mine")) == 1
    driving.end()


def test_an_old_request_is_not_for_a_later_driver(tmp_path: Path) -> None:
    asked = threading.Event()
    first = Driving(tmp_path, "sweep", lambda: None)
    (driver,) = drivers_of(tmp_path, "sweep")
    first.end()
    driver.ask_to_stop()  # too late
    second = Driving(tmp_path, "sweep", asked.set)
    assert not driver.path.with_suffix(".stop").exists()
    assert not asked.is_set()
    second.end()


def test_releasing_twice_does_no_harm(path: Path) -> None:
    lease = Lease(path)
    lease.release()
    lease.release()
    assert holder_of(path) is None


def test_some_heartbeats_may_be_lost() -> None:
    assert STALE_AFTER_S >= 3 * HEARTBEAT_S
