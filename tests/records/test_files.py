"""Files that are replaced whole: what is there before, meanwhile and after a failure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.records.files import Damaged, parse_rows, write_atomically, write_once
from tests.sweeps import ROOT


@pytest.mark.parametrize("options", [{}, {"shared": True}, {"durable": False}], ids=str)
def test_a_file_is_replaced_whole_and_nothing_else_is_left(
    options: dict[str, bool], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    write_atomically(path, "βeta\n", **options)
    assert path.read_bytes() == "βeta\n".encode()
    write_atomically(path, b"\xff\r\n", **options)
    assert path.read_bytes() == b"\xff\r\n"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_a_file_has_the_mode_that_the_user_gives_files(
    mask: int, mode: int, tmp_path: Path
) -> None:
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "file", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("shared", [False, True])
def test_what_cannot_be_written_leaves_the_old_file(shared: bool, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "a lone surrogate: \ud800", shared=shared)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_processes_that_share_a_file_fill_scratch_files_of_their_own(tmp_path: Path) -> None:
    """What another process is writing, under whatever name, is not touched."""
    half = tmp_path / f".file.{os.getppid()}.tmp"
    half.write_text("half of another proce")
    write_atomically(tmp_path / "file", "ours", shared=True)
    assert half.read_text() == "half of another proce"
    assert (tmp_path / "file").read_text() == "ours"


def test_a_wrong_line_among_many_is_named(tmp_path: Path) -> None:
    good = [f'{{"step": {step}}}' for step in range(1200)]
    assert [
        row["step"]
        for row in parse_rows("".join(f"{line}\n" for line in good).encode(), tmp_path, "")
    ] == [*range(1200)]
    for wrong in ("1", '{"step": 1}, {"step": 2}', "", '{"step": 1'):
        lines = [*good[:700], wrong, *good[700:]]
        with pytest.raises(Damaged, match="line 701 is"):
            list(parse_rows("".join(f"{line}\n" for line in lines).encode(), tmp_path, ""))


@pytest.mark.parametrize("write", ["write_once", "write_atomically"])
def test_a_kill_leaves_a_new_file_without_its_name(write: str, tmp_path: Path) -> None:
    killed_at("fsync", f"{write}(path, 'new')", tmp_path / "name")
    assert all(
        path.name.startswith(".name.") and path.suffix == ".tmp" for path in tmp_path.iterdir()
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_kill_leaves_the_old_file(moment: str, shared: bool, tmp_path: Path) -> None:
    path = tmp_path / "name"
    path.write_text("old")
    killed_at(moment, f"write_atomically(path, 'new', shared={shared})", path)
    assert path.read_text() == "old"


def test_the_next_writer_removes_what_a_kill_has_left(tmp_path: Path) -> None:
    path = tmp_path / "name"
    killed_at("replace", "write_atomically(path, 'new')", path)
    assert [each.name for each in tmp_path.iterdir()] == [".name.tmp"]
    write_atomically(path, "newer")
    assert path.read_text() == "newer"
    assert list(tmp_path.iterdir()) == [path]


def killed_at(call: str, write: str, path: Path) -> None:
    """Run `write` of `path` in a process that is killed as it calls the system's `call`."""
    killed = f"""
import os, signal
from pathlib import Path
from orchestrator.records.files import write_atomically, write_once
os.{call} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
path = Path({str(path)!r})
{write}
"""
    done = subprocess.run([sys.executable, "-c", killed], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL


def test_the_first_to_write_a_file_wins(tmp_path: Path) -> None:
    path = tmp_path / "name"
    assert write_once(path, "first")
    assert not write_once(path, "second")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / "another").write_text("")
    assert path.stat().st_mode == (tmp_path / "another").stat().st_mode
