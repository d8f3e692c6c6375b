"""Counts the CPU cores that this process may keep busy."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def cores_here() -> int:
    """Cores that the process is bound to, or its container's CPU limit if lower; at least 1.

    Slurm, `taskset` and cpusets bind processes to cores; `docker --cpus` and Kubernetes limit CPU
    time. A system with neither, such as macOS, gives all cores of the machine.
    """
    return max(1, int(min([bound_cores(), *_limits()])))


def bound_cores() -> int:
    """Cores that the process is bound to; all of the machine where it is bound to none."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _limits() -> list[float]:
    """CPU limits, in cores, of the process's cgroup and its ancestors; empty if unlimited."""
    quotas: list[tuple[str, str]] = []
    with suppress(OSError, ValueError):
        own = _own_cgroup()
        for group in (CGROUPS / own, *(CGROUPS / own).parents):
            if group.is_relative_to(CGROUPS) and (group / "cpu.max").is_file():
                quota, period = (group / "cpu.max").read_text(encoding="utf-8").split()
                quotas.append((quota, period))
    with suppress(OSError):  # cgroups v1: a container sees its own group at the root
        quota = (CGROUPS / "cpu" / "cpu.cfs_quota_us").read_text("utf-8")
        quotas.append((quota, (CGROUPS / "cpu" / "cpu.cfs_period_us").read_text("utf-8")))
    return [int(quota) / int(period) for quota, period in quotas if quota.strip().isdigit()]


def _own_cgroup() -> str:
    """The path of this process's cgroup below CGROUPS. ValueError with cgroups v1 alone."""
    for line in OWN_CGROUPS.read_text(encoding="utf-8").splitlines():
        if line.startswith("0::/"):
            return line.removeprefix("0::/")
    raise ValueError("no cgroup of version 2")
