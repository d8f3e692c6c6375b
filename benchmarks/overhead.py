"""Measures the cost of a unit beside its own work: 200 units that do nothing, through Ray, Tune and
the run directories.

`python -m benchmarks.overhead [UNITS]`; part of `make bench-scale`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from orchestrator.sweep.prepare import prepare_environment

prepare_environment(None)

from ray import tune  # noqa: E402

from orchestrator.experiment.load import load_experiment  # noqa: E402
from orchestrator.experiment.units import expand  # noqa: E402
from orchestrator.records.writer import RunWriter  # noqa: E402
from orchestrator.selection.study import Study  # noqa: E402
from orchestrator.sweep.cluster import cluster  # noqa: E402
from orchestrator.sweep.processes import Sweep  # noqa: E402
from orchestrator.sweep.tuner import run_sweep  # noqa: E402
from tests.sweeps import write_experiment  # noqa: E402

UNITS = 200


class Trivial(tune.Trainable):
    """A process that finds every unit trained."""

    def setup(self, config: dict[str, Any], sweep: Sweep) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._sweep, self._unit_id = sweep, config["unit"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._unit_id = new_config["unit"]
        return True

    def step(self) -> dict[str, Any]:
        with closing(RunWriter(self._sweep.study.runs, self._unit_id)) as run:
            run.describe({}, dict)
            run.finish()
        return {"done": True}


def seconds_a_unit(units: int = UNITS) -> float:
    """Wall-clock seconds for each of so many units, from the first to the last; Ray's own start is
    not counted.
    """
    with tempfile.TemporaryDirectory(prefix="trb-overhead-") as folder:
        experiment = load_experiment(
            write_experiment(Path(folder), {"vanilla": {}}), [f"seeds={list(range(units))}"]
        )
        runs = Path(folder) / "runs"
        runs.mkdir()
        study = Study(
            experiment, [unit for unit in expand(experiment, runs) if unit.is_trial], runs
        )
        with cluster(None):
            begun = time.monotonic()
            run_sweep(study, {}, process=Trivial)
            seconds = time.monotonic() - begun
        assert all(study.reader(unit).trained for unit in study.units)
    return seconds / units


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else UNITS
    print(f"{seconds_a_unit(count):.2f} s for each of {count} units")
