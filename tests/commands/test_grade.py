"""`trb grade`: what a file may hold, and what comes out."""

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands.grade import GradeCounts, grade_file
from orchestrator.errors import UserError


def _write(path: Path, rows: list[Any]) -> Path:
    """A JSON Lines file of the rows; a string row is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_grade_file_adds_grades_and_keeps_fields(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "gold": "025", "generation": r"\boxed{25}", "timed_out": True},
        {"id": "é", "gold": {"answer": "1,3", "multiple": True}, "generation": r"\boxed{3, 1}"},
        "",
        {"id": "c", "gold": 5, "generation": "no box"},
        {"id": "d", "gold": 27.0, "generation": r"\boxed{27}"},
    ]
    path = _write(tmp_path / "in.jsonl", rows)
    assert grade_file(path, None) == GradeCounts(n=4, correct=3, no_answer=1, timed_out=0)
    assert list(tmp_path.iterdir()) == [path]
    assert grade_file(path, path) == GradeCounts(n=4, correct=3, no_answer=1, timed_out=0)
    assert list(tmp_path.iterdir()) == [path]
    graded = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert graded[0] == {
        "id": "a",
        "gold": "025",
        "generation": r"\boxed{25}",
        "correct": True,
        "extracted": "25",
    }
    assert [row["id"] for row in graded] == ["a", "é", "c", "d"]
    assert [row["correct"] for row in graded] == [True, True, False, True]
    assert graded[2]["extracted"] is None


def test_answers_that_are_no_unicode_are_written_in_ascii(tmp_path: Path) -> None:
    rows = [
        {"gold": "5", "generation": "half a pair \ud800 \\boxed{5}"},
        {"gold": "5", "generation": "é \\boxed{\ud800\x00}"},
        {"gold": "\udfff", "generation": "é \\boxed{5}"},
    ]
    path, out = _write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    assert grade_file(path, out) == GradeCounts(n=3, correct=1)
    graded = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["extracted"] for row in graded] == ["5", "\ud800\x00", "5"]
    assert [row["generation"] for row in graded] == [row["generation"] for row in rows]


@pytest.mark.parametrize(
    ("row", "key", "value"),
    [
        ("{broken", "", "not valid JSON"),
        ([1], "", "list: expected a JSON object"),
        ({"gold": "5"}, "", "['gold']: expected the key 'generation'"),
        ({"generation": "5"}, "", "['generation']: expected the key 'gold'"),
        ({"gold": "5", "generation": 5}, " generation:", "5: expected a string"),
        ({"gold": [5], "generation": "5"}, " gold:", "[5]"),
        ({"gold": {"unit": "km"}, "generation": "5"}, " gold:", "{'unit': 'km'}"),
        ({"gold": {"answer": "5", "x": 1}, "generation": "5"}, " gold:", "'x': 1}"),
        ({"gold": {"answer": [5]}, "generation": "5"}, " gold:", "{'answer': [5]}"),
        ({"gold": math.nan, "generation": "5"}, " gold:", "nan: expected a string, a number"),
        ({"gold": {"answer": math.inf}, "generation": "5"}, " gold:", "{'answer': inf}"),
        ({"gold": {"answer": "5", "unit": ["cm"]}, "generation": "5"}, " gold:", "'unit' is"),
        ({"gold": {"answer": "5", "multiple": "no"}, "generation": "5"}, " gold:", "true or false"),
    ],
)
def test_grade_file_names_the_line_at_fault(tmp_path: Path, row: Any, key: str, value: str) -> None:
    path = _write(tmp_path / "in.jsonl", [{"gold": "5", "generation": "5"}, row])
    with pytest.raises(UserError) as caught:
        grade_file(path, tmp_path / "out.jsonl")
    assert f"in.jsonl line 2:{key} " in str(caught.value)
    assert value in str(caught.value)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_file_of_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"gold": "\xe9"}\n')
    with pytest.raises(UserError, match=r"latin\.jsonl line 1: not UTF-8 text"):
        grade_file(path, None)


def test_standard_input_is_a_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"gold": "½", "generation": r"\boxed{0.5}"}, {"gold": "2", "generation": r"\boxed{3}"}]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode("utf-8"))))
    assert grade_file(Path("-"), tmp_path / "out.jsonl").n == 2
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{")))
    with pytest.raises(UserError, match="- line 1: not valid JSON"):
        grade_file(Path("-"), None)


def test_rows_of_windows_and_cells_without_a_value(tmp_path: Path) -> None:
    rows = [
        {"gold": {"answer": 5, "unit": math.nan, "tolerance": None}, "generation": r"\boxed{5}"},
        {"gold": 1e-7, "generation": r"\boxed{0.0000001}"},
    ]
    path = tmp_path / "in.jsonl"
    text = "".join(json.dumps(row) + "\r\n" for row in rows)
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert grade_file(path, None).correct == 2
