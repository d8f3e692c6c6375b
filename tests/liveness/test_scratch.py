"""Folders for Ray's sockets: short and writable, whatever TMPDIR is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.errors import UserError
from orchestrator.liveness import scratch
from orchestrator.liveness.scratch import scratch_folder, scratch_parent

MINE = f"trb-{os.getuid()}"


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is short enough, however long the path of this test is."""
    folder = tmp_path / "short"
    folder.mkdir()
    limit = len(os.fsencode(folder / MINE))
    monkeypatch.setattr(scratch, "LONGEST_PARENT", limit)
    return folder


@pytest.mark.parametrize("own", ["a-folder-of-a-batch-system", "missing", "file", "foreign"])
def test_a_tmpdir_that_does_not_do_gives_way_to_a_short_folder(
    own: str, tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a-folder-of-a-batch-system").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / MINE).touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path / own))
    assert scratch_parent([str(short)]) == short / MINE


def test_a_tmpdir_that_does_is_taken(
    tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(short))
    with scratch_folder() as folder:
        assert folder.parent == short / MINE
        assert len(os.fsencode(folder)) == scratch.LONGEST_PARENT + len("/tmpabcdefgh")
    assert not folder.exists()


def test_without_any_folder_one_line_names_tmpdir_and_what_each_lacks(
    tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "a-long-one"))
    monkeypatch.setattr(scratch, "LEAST_FREE", 2**80)
    with pytest.raises(UserError) as raised:
        scratch_parent([str(short)])
    line = str(raised.value)
    assert line.startswith("TMPDIR: '")
    assert f"at most {len(os.fsencode(short))} bytes" in line
    assert f"{len(os.fsencode(tmp_path)) + 11} bytes; " in line
    assert "MiB free)" in line
