"""Machines as their processes measure them: a row at a time whoever works there, and where it goes."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import closing
from types import SimpleNamespace

import psutil
import pytest

from analysis.facts.units import machines_now
from orchestrator.records.machines import EVERY_S, machine_rows, note_machine
from orchestrator.records.writer import RunWriter
from orchestrator.tracking.tracker import Mirror
from orchestrator.tracking.wandb_tracker import machine_id
from tests.tracking.sweep import Sweep
from tests.tracking.test_online import server  # noqa: F401  a fixture
from tests.wandb_server import WandbServer

SMI = "0, 93, 40960\n1, [N/A], 512\n"


class Machine:
    """A machine with a clock of its own; `busy` of its CPU seconds are not idle."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.now, self.busy, self.idle, self.name = 1000.0, 50.0, 950.0, "gpu-1"
        patch.setattr(time, "time", lambda: self.now)
        patch.setattr(socket, "gethostname", lambda: self.name)
        patch.setattr(psutil, "cpu_times", lambda: self)
        memory = SimpleNamespace(used=3 * 2**30)
        patch.setattr(psutil, "virtual_memory", lambda: memory)

    def __getitem__(self, fields: slice) -> tuple[float, ...]:
        return (self.busy, 0.0, 0.0, self.idle, 0.0, 0.0, 0.0, 0.0)[fields]

    def measure(self, sweep: Sweep, after: float = 0.0, busy: float = 0.0, smi: str = "") -> None:
        self.now += after
        self.busy += busy
        self.idle += after - busy
        path = sweep.runs / ".machines" / sweep.experiment.name / f"{self.name}.jsonl"
        before = path.read_text() if path.exists() else ""
        note_machine(sweep.runs, sweep.experiment.name, lambda query: smi)
        if path.read_text() != before:
            os.utime(path, (self.now, self.now))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_a_row_now_and_then_has_the_mean_since_the_last(sweep: Sweep, machine: Machine) -> None:
    machine.measure(sweep, smi=SMI)
    machine.measure(sweep, after=EVERY_S - 1, busy=5.0)  # another process, too early
    machine.measure(sweep, after=2, busy=1.0, smi=SMI)
    machine.measure(sweep, after=EVERY_S, busy=EVERY_S)
    gpus = {"gpu.0.use": 93.0, "gpu.0.memory_gib": 40.0, "gpu.1.memory_gib": 0.5}
    assert machine_rows(sweep.runs, sweep.experiment.name)["gpu-1"] == {
        1000.0: {"memory_gib": 3.0} | gpus,
        1016.0: {"cpu": 37.5, "memory_gib": 3.0} | gpus,
        1031.0: {"cpu": 100.0, "memory_gib": 3.0},
    }


def test_a_torn_row_and_one_of_the_same_moment_are_left_out(sweep: Sweep, machine: Machine) -> None:
    machine.measure(sweep)
    (path,) = sweep.runs.glob(".machines/*/*")
    path.write_text(2 * path.read_text() + '{"at": 10')
    assert list(machine_rows(sweep.runs, sweep.experiment.name)["gpu-1"]) == [1000.0]
    with path.open("a") as file:
        file.write("\n")
    machine.measure(sweep, after=EVERY_S)
    assert len(machine_rows(sweep.runs, sweep.experiment.name)["gpu-1"]) == 2


def test_machines_and_experiments_are_apart(sweep: Sweep, machine: Machine) -> None:
    machine.measure(sweep)
    machine.name = "gpu-2"
    machine.measure(sweep)
    assert set(machine_rows(sweep.runs, sweep.experiment.name)) == {"gpu-1", "gpu-2"}
    assert machine_rows(sweep.runs, "another") == {}


def test_tokens_a_second_of_all_that_sample_there(sweep: Sweep, machine: Machine) -> None:
    """A step of 20 s with 100 tokens/s and one of 40 s with 50, each shown from its end on."""
    work = [("gpu-1", 1020.0, 20.0, 2000), ("gpu-1", 1040.0, 40.0, 2000), ("gpu-2", 1040.0, 9.0, 9)]
    for unit, (host, end, seconds, tokens) in zip(sweep.units[1:], work, strict=False):
        with closing(RunWriter(sweep.runs, unit.id)) as run:
            machine.now = end
            row = {"step": 0, "phase": "train", "rollout": seconds, "tokens": tokens}
            run.append_timing(row | {"host": host, "process": 7})
    machine.now = 1000.0
    for _ in range(6):
        machine.measure(sweep, after=15.0)
    rows = machines_now(sweep.study)["gpu-1"]
    rates = [(at, row.get("tokens_per_s")) for at, row in rows.items()]
    before = [(1015.0, None), (1030.0, 100.0)]
    assert rates == [*before, (1045.0, 50.0), (1060.0, 50.0), (1075.0, 50.0), (1090.0, 0.0)]


def test_each_machine_is_a_run(server: WandbServer, sweep: Sweep) -> None:  # noqa: F811
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(patch)
        for name in ("gpu-1", "gpu-2"):
            machine.name = name
            for _ in range(2):
                machine.measure(sweep, after=EVERY_S, busy=3.0, smi=SMI)
    for _ in range(2):
        Mirror(sweep.study, "", lambda line: None).catch_up({}, [])
        for name in ("gpu-1", "gpu-2"):
            run = server.runs[machine_id(sweep.experiment.name, name)]
            assert [row["step"] for row in run.rows] == [0, 1]
            assert run.rows[1]["system/cpu"] == 20.0
            assert run.rows[1]["system/gpu.0.use"] == 93.0
            titles = "machine", f"Machine · {name}"
            assert (run.inputs["jobType"], run.inputs["displayName"]) == titles
    run = server.runs[machine_id(sweep.experiment.name, "gpu-1")]
    assert [json.loads(line)["_timestamp"] for line in run.history.values()] == [1015.0, 1030.0]
