"""Packs from a stranger: nothing is written outside the folder, or at all, unless all of it is
right.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from orchestrator.commands.open_pack import open_pack
from orchestrator.errors import UserError
from orchestrator.records.files import Damaged
from tests.commands.packs import NAME, Members, finished, listed, members_of, write_tar
from tests.sweeps import trb_here

PACK = "sweep.tar.gz"


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from orchestrator.cli import main

    folder = tmp_path_factory.mktemp("packed")
    words = finished(folder)
    with pytest.raises(SystemExit) as ended:
        main(["pack", *words, "--output", str(folder / PACK)])
    assert ended.value.code == 0
    return folder / PACK


@pytest.fixture
def members(pack: Path) -> Members:
    return members_of(pack)


def refused(tmp_path: Path, expected: type[UserError] = UserError) -> str:
    """The message of opening `tmp_path/sweep.tar.gz`, which must leave nothing behind."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(expected) as error:
        open_pack(tmp_path / PACK, tmp_path / "opened")
    assert sorted(tmp_path.rglob("*")) == before
    return str(error.value)


def test_an_untouched_copy_opens(tmp_path: Path, members: Members) -> None:
    """The helpers of this file write packs that are right where nothing is changed."""
    write_tar(tmp_path / PACK, listed(members))
    opened = open_pack(tmp_path / PACK, tmp_path / "opened")
    assert (opened.results / "experiment.yaml").is_file()
    for name, data in members.items():
        assert (opened.folder / name).read_bytes() == data


def other(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "info",
    [
        other("../evil.txt"),
        other(f"{NAME}/../../evil.txt"),
        other(f"{NAME}/link.txt", tarfile.SYMTYPE, "/etc/passwd"),
        other(f"{NAME}/pipe.txt", tarfile.FIFOTYPE),
        other("second/more.txt"),
        other(f"{NAME}/more.json"),
    ],
)
def test_more_than_the_listed_files(
    tmp_path: Path, members: Members, info: tarfile.TarInfo
) -> None:
    write_tar(tmp_path / PACK, listed(members), info)
    assert PACK in refused(tmp_path)


TABLE, EXPERIMENT = (f"results/{NAME}/{file}" for file in ("table.md", "experiment.yaml"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("grader.py", b"evil"),
        ("weights.safetensors", b"evil"),
        (EXPERIMENT, b"name: ${oc.env:HOME}\n"),
        (EXPERIMENT, None),
    ],
)
def test_listed_members_that_no_pack_holds_or_lacks(
    tmp_path: Path, members: Members, name: str, content: bytes | None
) -> None:
    """Code, and an experiment that would read the environment, though their sums are right."""
    del members["SHA256SUMS"]
    members.pop(name, None)
    more = {} if content is None else {name: content}
    write_tar(tmp_path / PACK, listed(members | more))
    assert Path(name).name in refused(tmp_path)


def test_a_listed_member_that_is_missing(tmp_path: Path, members: Members) -> None:
    del members[TABLE]
    write_tar(tmp_path / PACK, members)
    assert TABLE in refused(tmp_path)


def test_a_member_with_other_bytes(tmp_path: Path, members: Members) -> None:
    write_tar(tmp_path / PACK, members | {TABLE: bytes(len(members[TABLE]))})
    assert TABLE in refused(tmp_path, Damaged)


@pytest.mark.parametrize("content", [b"", b"PK", b"no pack at all", bytes(10_000)])
def test_what_is_no_pack(tmp_path: Path, content: bytes) -> None:
    (tmp_path / PACK).write_bytes(content)
    refused(tmp_path)


def test_cut_off_and_flipped_bytes_are_noticed(tmp_path: Path, pack: Path) -> None:
    data = pack.read_bytes()
    changed = [data[:length] for length in (len(data) // 2, len(data) // 100, 100)]
    for place in range(100, len(data) - 100, len(data) // 20):
        changed.append(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    for content in changed:
        (tmp_path / PACK).write_bytes(content)
        refused(tmp_path)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, pack: Path) -> None:
    (tmp_path / PACK).write_bytes(pack.read_bytes())
    (tmp_path / "opened").mkdir()
    (tmp_path / "opened" / "notes.txt").write_text("mine")
    refused(tmp_path)


def test_opening_again_verifies_what_lies_there(tmp_path: Path, pack: Path) -> None:
    opened = open_pack(pack, tmp_path / "opened")
    assert open_pack(pack, tmp_path / "opened") == opened
    table = opened.results / "table.md"
    table.write_bytes(table.read_bytes() + b"\n")
    with pytest.raises(Damaged) as error:
        open_pack(pack, tmp_path / "opened")
    assert str(table) in str(error.value)


def test_the_command_refuses_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = trb_here(capsys, "open", tmp_path / "none.tar.gz")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("trb: FILE.tar.gz: ")
    assert "none.tar.gz" in err
