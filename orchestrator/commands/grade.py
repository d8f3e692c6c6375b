"""`trb grade`: the one grader over a file of rows {gold, generation}."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from orchestrator.cores import cores_here
from orchestrator.errors import UserError, refuse
from orchestrator.grading.gold import MATH, Gold
from orchestrator.grading.grader import Grader
from orchestrator.grading.judges import version_of
from orchestrator.records.files import write_atomically

MOST_WORKERS = 16  # each takes about 100 MB
STDIN = "-"


@dataclass
class GradeCounts:
    """Totals of a graded file."""

    n: int = 0
    correct: int = 0
    no_answer: int = 0
    timed_out: int = 0


def grade_file(path: Path, out: Path | None, judge: str = MATH) -> GradeCounts:
    """Grade a JSON Lines file of ``{gold, generation}`` rows, or standard input for ``-``.

    The rows with their grades are written to ``out`` if given, which appears whole or not at all
    and may be ``path`` itself. ``gold`` is a string, a number or an object with Gold's fields. Rows
    keep their other fields and gain ``correct``, ``extracted``, and ``timed_out`` where true.
    ``judge`` decides where a gold names no other. Raises UserError, which names file and line.
    """
    version_of(judge, "--grader")
    rows, answers = [], []
    for row, gold in _read_rows(path):
        rows.append(row)
        gold = replace(gold, judge=judge) if gold.judge == MATH else gold
        answers.append((gold, row["generation"]))
    if out is not None and not out.parent.is_dir():
        raise refuse("--out", str(out), "a file in a folder that exists")
    with Grader(workers=min(cores_here(), MOST_WORKERS)) as grader:
        grades = grader.grade_many(answers)
    counts, lines = GradeCounts(), []
    for row, grade in zip(rows, grades, strict=True):
        counts.n += 1
        counts.correct += grade.correct
        counts.no_answer += grade.extracted is None
        counts.timed_out += grade.timed_out
        row.pop("timed_out", None)  # that of an earlier grading
        row |= {"correct": grade.correct, "extracted": grade.extracted}
        row |= {"timed_out": True} if grade.timed_out else {}
        lines.append(_line(row))
    if out is not None:
        write_atomically(out, "".join(lines), shared=True)
    return counts


def _line(row: dict[str, Any]) -> str:
    """The row as a line; in ASCII where half of a surrogate pair cannot be written in UTF-8."""
    line = json.dumps(row, ensure_ascii=False) + "\n"
    try:
        line.encode()
    except UnicodeEncodeError:
        return json.dumps(row) + "\n"
    return line


def _read_rows(path: Path) -> Iterator[tuple[dict[str, Any], Gold]]:
    """Yield (row, gold) for each line that is not blank."""
    try:
        content = sys.stdin.buffer.read() if str(path) == STDIN else path.read_bytes()
        text = content.decode("utf-8")
    except OSError as error:
        why = error.strerror
        raise UserError(f"{path}: cannot be read ({why}): expected a JSON Lines file") from error
    except UnicodeDecodeError as error:
        where = f"byte {error.start} is not UTF-8"
        raise UserError(f"{path}: {where}: expected a UTF-8 JSON Lines file") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            row = _parse_row(line, f"{path}:{number}")
            yield row, _parse_gold(row["gold"], f"{path}:{number}: gold")


def _parse_row(line: str, where: str) -> dict[str, Any]:
    """One row with both keys and the generation as text."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
        raise UserError(f"{where}: not JSON ({error}): expected one object per line") from error
    if not isinstance(row, dict):
        raise refuse(where, row, "an object with 'gold' and 'generation'")
    for key in ("gold", "generation"):
        if key not in row:
            raise refuse(where, sorted(row), f"the key '{key}' among them")
    if not isinstance(row["generation"], str):
        raise refuse(f"{where}: generation", row["generation"], "a string")
    return row


def _parse_gold(value: Any, key: str) -> Gold:
    known = [field.name for field in fields(Gold)]
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    entries: Any = {"answer": value} if isinstance(value, str) else value
    if not isinstance(entries, dict) or "answer" not in entries or set(entries) - set(known):
        expected = f"a string, a number or an object with 'answer' and some of {', '.join(known)}"
        raise refuse(key, value, expected)
    try:
        return Gold(**entries)
    except ValueError as error:
        raise UserError(f"{key}: {error}") from error
