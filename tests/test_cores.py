"""How many cores a process counts: what it is bound to, and what its container may take."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator import cores
from orchestrator.cores import cores_here


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cgroups of a machine on whose 64 cores the process may run."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(cores, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "OWN_CGROUPS", tmp_path / "own")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_cores_that_a_process_is_bound_to(machine: Path) -> None:
    assert cores_here() == 64


@pytest.mark.parametrize(
    ("limit", "count"),
    [("400000 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("max 100000", 64)],
)
def test_a_container_has_the_time_that_it_was_given(machine: Path, limit: str, count: int) -> None:
    write(machine / "own", "0::/\n")
    write(machine / "cgroup" / "cpu.max", f"{limit}\n")
    assert cores_here() == count


def test_the_narrowest_of_the_groups_around_a_process_counts(machine: Path) -> None:
    write(machine / "own", "1:name=systemd:/elsewhere\n0::/user.slice/job/step\n")
    write(machine / "cgroup" / "user.slice" / "cpu.max", "3200000 100000\n")
    write(machine / "cgroup" / "user.slice" / "job" / "cpu.max", "800000 100000\n")
    write(machine / "cgroup" / "user.slice" / "job" / "step" / "cpu.max", "max 100000\n")
    assert cores_here() == 8


@pytest.mark.parametrize(("quota", "count"), [("600000", 6), ("-1", 64)])
def test_containers_of_older_kernels(machine: Path, quota: str, count: int) -> None:
    write(machine / "own", "4:cpu,cpuacct:/docker/1234\n")
    write(machine / "cgroup" / "cpu" / "cpu.cfs_quota_us", f"{quota}\n")
    write(machine / "cgroup" / "cpu" / "cpu.cfs_period_us", "100000\n")
    assert cores_here() == count


def test_what_cannot_be_read_limits_nothing(machine: Path) -> None:
    write(machine / "own", "0::/job\n")
    write(machine / "cgroup" / "job" / "cpu.max", "\n")
    assert cores_here() == 64


def test_a_system_that_does_not_bind_processes_to_cores(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores_here() == os.cpu_count()
