"""Rows of data files, a line or a batch at a time; contents that are not the declared ones."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from orchestrator.data.files import (
    folder_sha256,
    iterate_jsonl,
    iterate_rows,
    read_jsonl,
    text_field,
    verify_sha256,
)
from orchestrator.errors import UserError


def test_blank_lines_and_line_separators(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "x\u2028y"}\n\n  \n{"a": 2}', encoding="utf-8")
    assert read_jsonl(path) == [{"a": "x\u2028y"}, {"a": 2}]


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(UserError, match="UTF-8"):
        read_jsonl(tmp_path / "rows.jsonl")


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
    rows = iterate_jsonl(path)
    assert next(rows) == {"a": 1}
    with pytest.raises(UserError, match=r"rows\.jsonl line 2: not valid JSON"):
        next(rows)


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
    with pytest.raises(UserError, match=r"holds no data: expected \.jsonl or \.parquet files"):
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
