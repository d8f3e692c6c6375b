"""Rows of data files, a line or a batch at a time; contents that are not the declared ones."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from orchestrator.data.files import (
    folder_sha256,
    iterate_rows,
    numbered_rows,
    text_field,
    verify_sha256,
)
from orchestrator.errors import UserError


def test_blank_lines_and_line_separators(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "x\u2028y"}\n\n  \n{"a": 2}', encoding="utf-8")
    assert list(numbered_rows(path)) == [(1, {"a": "x\u2028y"}), (4, {"a": 2})]


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(UserError, match="UTF-8"):
        list(iterate_rows(tmp_path / "rows.jsonl"))


def test_sha256_is_compared_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    right = hashlib.sha256(b"abc").hexdigest()
    verify_sha256(path, right)
    for wrong in (right[:-1] + "0", right[:12], "", None):
        with pytest.raises(UserError, match="declared"):
            verify_sha256(path, wrong)


def test_text_fields_are_not_empty() -> None:
    assert text_field(Path("f"), 1, {"a": " x "}, "a") == " x "
    for value in ("", " \n", None, 3):
        with pytest.raises(UserError, match="f line 1: a is"):
            text_field(Path("f"), 1, {"a": value}, "a")


def test_lines_are_read_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a":\n')
    rows = iterate_rows(path)
    assert next(rows) == {"a": 1}
    with pytest.raises(UserError, match=r"rows\.jsonl line 2: not valid JSON"):
        next(rows)


ROWS = [{"id": 1, "text": "é"}, {"id": 2, "text": "b"}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
BOM = b"\xef\xbb\xbf"
FORMS = {
    "rows.jsonl": LINES,
    "mark.jsonl": BOM + LINES.replace(b"\n", b"\r\n"),
    "joined.jsonl": BOM + LINES.replace(b"\n", b"\n\n" + BOM, 1),
    "rows.jsonl.gz": gzip.compress(BOM + LINES),
    "other name": gzip.compress(LINES),
    "rows.txt": LINES,
    "list.json": json.dumps(ROWS).encode(),
    "list.json.gz": gzip.compress(BOM + json.dumps(ROWS, indent=2).encode()),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_content_tells_how_rows_are_written(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FORMS[name])
    assert list(iterate_rows(tmp_path / name)) == ROWS


def test_parquet_is_read_under_any_name(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "rows.jsonl"
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(ROWS), path)
    assert list(numbered_rows(path)) == list(enumerate(ROWS, 1))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("cut.jsonl.gz", gzip.compress(LINES)[:-9], "not a readable gzip file"),
        ("sum.jsonl.gz", gzip.compress(LINES)[:-5] + b"12345", "not a readable gzip file"),
        ("rows.csv", b"id,text\n1,a\n", "unknown kind of file: expected one of .jsonl, "),
        ("rows.parquet", b"version https://git-lfs", "not a readable parquet file"),
        ("rows.parquet", b"PAR1 and no more", "not a readable parquet file"),
        ("rows.jsonl", LINES.decode().encode("utf-16"), "line 1: not UTF-8 text"),
        ("rows.json", b'[{"a": 1}, 2]', "line 2: int: expected a JSON object"),
        ("rows.json", b'[{"a": 1},', "line 1: not valid JSON"),
        ("rows.jsonl", b'{"a": 1}\n[{"a": 2}]\n', "line 2: list: expected a JSON object"),
        ("deep.jsonl", b'{"a": ' + b"[" * 100_000, "line 1: not valid JSON"),
    ],
)
def test_broken_files_are_one_line(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        list(iterate_rows(tmp_path / name))
    assert str(caught.value).startswith(f"{tmp_path / name}")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_half_a_surrogate_pair_and_nul_are_no_text() -> None:
    for value, shown in (("a\ud800b", r"'\\ud800' at character 2"), ("\0", r"'\\x00'")):
        with pytest.raises(UserError, match=f"f line 1: a holds {shown}"):
            text_field(Path("f"), 1, {"a": value}, "a")
    assert text_field("f", 1, json.loads(r'{"a": "\ud83d\ude00"}'), "a") == "\U0001f600"


def test_parquet_rows_hold_what_is_asked_for(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "rows.parquet"
    rows = [{"a": i, "b": {"c": [str(i)]}, "d": None} for i in range(1000)]
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    assert list(iterate_rows(path)) == rows
    assert list(iterate_rows(path, ("b", "absent"))) == [{"b": row["b"]} for row in rows]


def test_files_of_a_folder_by_name(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "README.md"):
        (tmp_path / name).write_text(f'{{"from": "{name}"}}\n')
    assert [row["from"] for row in iterate_rows(tmp_path)] == ["a.jsonl", "b.jsonl"]


def test_a_folder_without_data(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    with pytest.raises(
        UserError, match=r"no data: expected \.jsonl or \.jsonl\.gz or \.parquet files"
    ):
        list(iterate_rows(tmp_path))


def test_a_folders_hash_is_of_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    whole = folder_sha256(tmp_path)
    verify_sha256(tmp_path, whole)
    (tmp_path / "a").rename(tmp_path / "c")
    assert folder_sha256(tmp_path) != whole
    with pytest.raises(UserError, match=f"{tmp_path}: sha256 .* its files were changed"):
        verify_sha256(tmp_path, whole)
