"""Packs from a stranger: nothing is written outside the folder, or at all, unless all of it is
right.
"""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path

import pytest

from orchestrator.archive import unpacking
from orchestrator.archive.unpacking import open_pack
from orchestrator.errors import UserError
from orchestrator.records.files import Damaged
from tests.archive.packs import NAME, Members, finished, listed, members_of, write_zip
from tests.sweeps import trb_here


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from orchestrator.cli import main

    folder = tmp_path_factory.mktemp("packed")
    words = finished(folder)
    with pytest.raises(SystemExit) as ended:
        main(["pack", *words, "--output", str(folder / "sweep.trb")])
    assert ended.value.code == 0
    return folder / "sweep.trb"


@pytest.fixture
def members(pack: Path) -> Members:
    return members_of(pack)


def refused(tmp_path: Path, expected: type[UserError] = UserError) -> str:
    """The message of opening `tmp_path/sweep.trb`, which must leave nothing behind."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(expected) as error:
        open_pack(tmp_path / "sweep.trb", tmp_path / "opened")
    assert sorted(tmp_path.rglob("*")) == before
    return str(error.value)


def test_an_untouched_copy_opens(tmp_path: Path, members: Members) -> None:
    """The helpers of this file write packs that are right where nothing is changed."""
    write_zip(tmp_path / "sweep.trb", listed(members))
    opened = open_pack(tmp_path / "sweep.trb", tmp_path / "opened")
    assert (opened.results / "experiment.yaml").is_file()
    for name, data in members.items():
        assert name == "manifest.json" or (opened.folder / name).read_bytes() == data


@pytest.mark.parametrize(
    "name",
    [
        "../evil.txt",
        "results/../../evil.txt",
        "/tmp/evil.txt",
        "results//evil.txt",
        "results/./evil.txt",
        "..\\evil.txt",
        "C:evil.txt",
        ".index/evil.json",
        "results/.hidden.json",
        "results/new\nline.txt",
        "grader.py",
        "weights.safetensors",
        "state.pkl",
        "",
    ],
)
def test_a_member_with_a_harmful_name(tmp_path: Path, members: Members, name: str) -> None:
    write_zip(tmp_path / "sweep.trb", listed(members | {name: b"evil"}))
    assert "member" in refused(tmp_path)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFDIR, stat.S_IFCHR])
def test_a_member_that_is_no_plain_file(tmp_path: Path, members: Members, kind: int) -> None:
    def change(info: zipfile.ZipInfo) -> None:
        if info.filename.endswith("table.md"):
            info.create_system = 3
            info.external_attr = (kind | 0o777) << 16

    write_zip(tmp_path / "sweep.trb", listed(members), change)
    assert "table.md" in refused(tmp_path)


def test_members_that_the_manifest_does_not_list(tmp_path: Path, members: Members) -> None:
    write_zip(tmp_path / "sweep.trb", members | {"more.json": b"{}"})
    assert "more.json" in refused(tmp_path)


def test_members_that_are_missing(tmp_path: Path, members: Members) -> None:
    name = f"results/{NAME}/table.md"
    del members[name]
    write_zip(tmp_path / "sweep.trb", members)
    assert name in refused(tmp_path)


@pytest.mark.parametrize("content", [b"name: ${oc.env:HOME}\n", None])
def test_an_experiment_that_reads_the_environment_or_is_missing(
    tmp_path: Path, members: Members, content: bytes | None
) -> None:
    name = f"results/{NAME}/experiment.yaml"
    if content is None:
        del members[name]
    else:
        members[name] = content
    write_zip(tmp_path / "sweep.trb", listed(members))
    assert "experiment.yaml" in refused(tmp_path)


def test_the_same_member_twice(tmp_path: Path, members: Members) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        write_zip(tmp_path / "sweep.trb", members, twice=f"results/{NAME}/table.md")
    assert "'the same member twice'" in refused(tmp_path)


def test_a_bomb_whose_manifest_agrees(tmp_path: Path, members: Members) -> None:
    zeros = bytes(unpacking.SMALL + 1)
    write_zip(tmp_path / "sweep.trb", listed(members | {"zeros.json": zeros}))
    assert "bytes unpacked'" in refused(tmp_path)


def test_a_member_larger_than_the_manifest_says(tmp_path: Path, members: Members) -> None:
    name = f"results/{NAME}/table.md"
    write_zip(tmp_path / "sweep.trb", members | {name: members[name] + b"more"})
    assert name in refused(tmp_path)


def test_a_member_with_other_bytes_of_the_same_size(tmp_path: Path, members: Members) -> None:
    name = f"results/{NAME}/table.md"
    write_zip(tmp_path / "sweep.trb", members | {name: bytes(len(members[name]))})
    assert name in refused(tmp_path, Damaged)


def test_a_manifest_too_large(tmp_path: Path, pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MOST_MANIFEST", 100)
    (tmp_path / "sweep.trb").write_bytes(pack.read_bytes())
    assert "manifest.json" in refused(tmp_path)


@pytest.mark.parametrize(
    "keys",
    [
        {"format": 2},
        {"format": None},
        {"name": "../outside"},
        {"name": None},
        {"members": []},
        {"members": {"a.json": {"size": -1, "sha256": "0" * 64}}},
        {"members": {"a.json": {"size": 1, "sha256": "x"}}},
        {"members": {"a.json": None}},
    ],
)
def test_a_manifest_that_is_none(tmp_path: Path, members: Members, keys: dict) -> None:
    write_zip(tmp_path / "sweep.trb", listed(members, keys))
    refused(tmp_path)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_manifest_that_is_no_json(tmp_path: Path, members: Members, text: bytes) -> None:
    write_zip(tmp_path / "sweep.trb", members | {"manifest.json": text})
    refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK", b"no zip at all", bytes(10_000)])
def test_what_is_no_pack(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sweep.trb").write_bytes(content)
    refused(tmp_path)


def test_a_truncated_pack(tmp_path: Path, pack: Path) -> None:
    data = pack.read_bytes()
    for length in (len(data) - 1, len(data) - 64, len(data) // 2, 100):
        (tmp_path / "sweep.trb").write_bytes(data[:length])
        refused(tmp_path)


def test_every_flipped_byte_is_noticed(tmp_path: Path, pack: Path) -> None:
    """Also in fields of the zip that carry no content, as the times of its members."""
    data = pack.read_bytes()
    for place in range(0, len(data), 997):
        changed = bytearray(data)
        changed[place] ^= 1
        (tmp_path / "sweep.trb").write_bytes(changed)
        refused(tmp_path)


def test_the_damaged_member_is_named(tmp_path: Path, pack: Path) -> None:
    data = bytearray(pack.read_bytes())
    with zipfile.ZipFile(pack) as archive:
        info = archive.getinfo(f"results/{NAME}/table.json")
    data[info.header_offset + 30 + len(info.filename) + info.compress_size // 2] ^= 1
    (tmp_path / "sweep.trb").write_bytes(data)
    assert f"results/{NAME}/table.json" in refused(tmp_path, Damaged)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, pack: Path) -> None:
    (tmp_path / "sweep.trb").write_bytes(pack.read_bytes())
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
    code, out, err = trb_here(capsys, "open", tmp_path / "none.trb")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "none.trb" in err
