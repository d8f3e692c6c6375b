"""What `trb submit` says before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.commands.submit import company
from orchestrator.records.writer import RunWriter
from tests import fake_runs


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_it_names_another_process_at_work(tmp_path: Path, taken: int) -> None:
    _, units = fake_runs.quickstart()
    runs = [RunWriter(tmp_path, unit.id) for unit in units[:taken]]
    lines = company(units, tmp_path)
    assert len(lines) == min(taken, 1)
    if taken:
        assert f"works on {taken} of them: each is waited for, for up to 2 min" in lines[0]
    for run in runs:
        run.close()
    assert company(units, tmp_path) == []
