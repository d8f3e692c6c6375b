"""Locks, what the system says of a process, and folders for Ray's sockets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from orchestrator.errors import UserError
from orchestrator.liveness import processes
from orchestrator.liveness.processes import (
    described,
    place,
    process_stat,
    scratch_folder,
    scratch_parent,
    take_lock,
)


def test_a_lock_is_taken_once_and_free_when_its_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("a") as first, path.open("a") as second:
        assert take_lock(first, wait=False)
        assert not take_lock(second, wait=False)
        first.close()
        assert take_lock(second, wait=False)


def test_who_waits_gets_the_lock_when_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    events = []
    with path.open("a") as first, path.open("a") as second:
        take_lock(first, wait=True)

        def wait() -> None:
            assert take_lock(second, wait=True)
            events.append("taken")

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.2)
        events.append("freed")
        first.close()
        thread.join()
    assert events == ["freed", "taken"]


def test_a_name_with_parentheses_and_spaces_moves_no_field(tmp_path: Path) -> None:
    odd = tmp_path / ") S 1 (a"
    odd.symlink_to(sys.executable)
    with subprocess.Popen(
        [odd, "-I", "-S", "-c", "print(flush=True); input()"], stdin=-1, stdout=-1
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert b"S 1 (a" in Path(f"/proc/{process.pid}/comm").read_bytes()
        stat = process_stat(process.pid)
        assert stat is not None
        assert stat[0] in "RS"
        assert int(stat[1]) == os.getpid()  # its parent
        process.kill()
    assert process_stat(process.pid) is None


def test_a_place_as_a_log_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert described(place()) == f"process {os.getpid()} on {socket.gethostname()}, GPU 4,5"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert described(place()) == f"process {os.getpid()} on {socket.gethostname()}"


# --- scratch folders: short and writable, whatever TMPDIR is ---

MINE = f"trb-{os.getuid()}"


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is short enough, however long the path of this test is."""
    folder = tmp_path / "short"
    folder.mkdir()
    limit = len(os.fsencode(folder / MINE))
    monkeypatch.setattr(processes, "LONGEST_PARENT", limit)
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
        assert len(os.fsencode(folder)) == processes.LONGEST_PARENT + len("/tmpabcdefgh")
    assert not folder.exists()


def test_without_any_folder_one_line_names_tmpdir_and_what_each_lacks(
    tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "a-long-one"))
    monkeypatch.setattr(processes, "LEAST_FREE", 2**80)
    with pytest.raises(UserError) as raised:
        scratch_parent([str(short)])
    line = str(raised.value)
    assert line.startswith("TMPDIR: '")
    assert f"at most {len(os.fsencode(short))} bytes" in line
    assert f"{len(os.fsencode(tmp_path)) + 11} bytes; " in line
    assert "MiB free)" in line
