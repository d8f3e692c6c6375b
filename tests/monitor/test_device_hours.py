"""Device-hours, from rows of clocks that are written here."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.monitor.unit_status import device_of, hours_spent
from orchestrator.selection.study import Study
from tests.fake_clocks import slice_row, step_row, write_clocks
from tests.fake_runs import quickstart, units_of


@pytest.mark.parametrize(("gpus", "hours"), [(0, (100 * 2 + 36 * 2) / 3600), (1, 136 / 3600)])
def test_hours_are_of_gpus_or_where_no_unit_uses_one_of_cores(
    tmp_path: Path, gpus: int, hours: float
) -> None:
    experiment, units = quickstart(f"runtime.placement.gpus={gpus}", "runtime.placement.cpus=2")
    [vanilla] = units_of(units, "vanilla")
    write_clocks(tmp_path, vanilla.id, [0], [step_row(0, 100, 5), slice_row(500, 36)])
    study = Study(experiment, units, tmp_path)
    assert device_of(study) == ("GPU" if gpus else "core")
    assert hours_spent(study) == pytest.approx(hours)
