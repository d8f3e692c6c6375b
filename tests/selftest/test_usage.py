"""How much memory is used, by whom, and when it has come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from orchestrator.selftest.usage import UsageWatch, came_back, gauge_here, seconds_until

READINGS = [(10.0, 3.0), (10.5, 8.0), (11.0, 0.4), (12.0, 5.0), (13.0, 0.1)]
HOLD = "import os, time; held = bytearray(256 * 2**20); print(os.getpid(), flush=True); time.sleep(3600)"
HOLDER = f"""
import subprocess, sys
held = bytearray(256 * 2**20)
subprocess.Popen([sys.executable, "-c", {HOLD!r}]).wait()
"""


def test_what_came_back_is_counted_from_the_first_reading() -> None:
    assert came_back(READINGS, 0.5) == 1.0
    assert came_back(READINGS, 0.2) == 3.0
    assert came_back(READINGS, 3.0) == 0.0
    assert came_back(READINGS, 0.05) is None


def test_a_watch_sees_what_comes_and_goes_while_its_block_runs() -> None:
    used, seen = [1.0], threading.Event()

    def gauge() -> float:
        if used[0] == 7.0:
            seen.set()
        return used[0]

    with UsageWatch(gauge) as watch:
        used[0] = 7.0
        assert seen.wait(60)
        used[0] = 0.5
    assert watch.readings[0][1] == 1.0
    assert (watch.peak_gib, watch.lowest_gib) == (7.0, 0.5)
    assert watch.readings[-1][1] == 0.5
    assert [at for at, _ in watch.readings] == sorted(at for at, _ in watch.readings)


def test_seconds_until_less_is_used() -> None:
    falling = iter([5.0, 4.0, 3.0, 2.0])
    taken = seconds_until(lambda: next(falling), 3.0, 60)
    assert taken is not None
    assert taken > 0
    assert next(falling) == 2.0, "no reading more than it takes"
    assert seconds_until(lambda: 5.0, 3.0, 0.05) is None


def test_without_a_gpu_memory_of_descendants_counts_until_they_end() -> None:
    gauge = gauge_here()
    before = gauge()
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=-1) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            assert gauge() - before == pytest.approx(0.5, abs=0.1), (
                "its own 256 MiB and those of its child"
            )
            holder.kill()
            holder.wait()
            assert gauge() - before == pytest.approx(0.25, abs=0.05), (
                "the child goes on, and is known"
            )
        finally:
            os.kill(child, signal.SIGKILL)
    assert seconds_until(gauge, before + 0.05, 60) is not None
