"""Which sweep `trb view` opens, and where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.view import opening
from tests.fake_runs import QUICKSTART
from tests.sweeps import trb_refuses


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal is there."""
    monkeypatch.setattr(opening, "has_screen", lambda: True)


def test_without_a_terminal_status_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = trb_refuses(capsys, "view", str(QUICKSTART), "--runs", str(tmp_path))
    assert f"trb status {QUICKSTART}" in line


@pytest.mark.usefixtures("terminal")
def test_a_runs_folder_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "nowhere"
    assert "nowhere" in trb_refuses(capsys, "view", str(QUICKSTART), "--runs", str(missing))
    assert "nowhere" in trb_refuses(capsys, "view", "--runs", str(missing))


@pytest.mark.usefixtures("terminal")
def test_an_experiment_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "quickstrat" in trb_refuses(capsys, "view", "quickstrat", "--runs", str(tmp_path))
