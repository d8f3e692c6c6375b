"""Who drives a sweep is found by its name, and asked to stop by a file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from orchestrator.liveness.drivers import Driving, drivers_of


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
