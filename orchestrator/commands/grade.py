"""`trb grade`: the one grader over a file of rows {gold, generation}."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from orchestrator.commands.arguments import Parser, refuse_folder
from orchestrator.cores import cores_here
from orchestrator.data.files import NO_TEXT, json_rows, numbered_rows
from orchestrator.data.problems import is_absent, number_text
from orchestrator.errors import UserError, refuse, shown
from orchestrator.grading.gold import MATH, Gold, version_of
from orchestrator.grading.grader import Grader
from orchestrator.records.files import write_atomically

MOST_WORKERS = 16  # each takes about 100 MB
STDIN = "-"


def add(parser: Parser) -> None:
    text = "rows {gold, generation}; - reads standard input"
    parser.add_argument("file", type=Path, metavar="FILE.jsonl", help=text)
    text = "the judge: math (default), or module:function"
    parser.option("--grader", None, text, default=MATH)
    parser.option("--out", "OUT.jsonl", "write the rows with their grades", Path)


def run(options: argparse.Namespace) -> int:
    refuse_folder(options.out)
    counts = grade_file(options.file, options.out, options.grader)
    rest = f"{counts.no_answer} without an answer, {counts.timed_out} timed out"
    print(f"{counts.n} graded: {counts.correct} correct, {rest}")
    return 0


@dataclass
class GradeCounts:
    """Totals of a graded file."""

    n: int = 0
    correct: int = 0
    no_answer: int = 0
    timed_out: int = 0


def grade_file(path: Path, out: Path | None, judge: str = MATH) -> GradeCounts:
    """Grade a file of ``{gold, generation}`` rows, JSON Lines or parquet, or ``-`` for standard input.

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


def _read_rows(path: Path) -> Iterator[tuple[dict[str, Any], Gold]]:
    """Yield (row, gold) for each row of a data file, or of standard input."""
    rows = json_rows(STDIN, sys.stdin.buffer) if str(path) == STDIN else numbered_rows(path)
    try:
        for line, row in rows:
            where = f"{path} line {line}"
            _check_row(row, where)
            yield row, _parse_gold(row["gold"], f"{where}: gold")
    except OSError as error:
        why = error.strerror
        raise UserError(f"{path}: cannot be read ({why}): expected a JSON Lines file") from error


def _check_row(row: dict[str, Any], where: str) -> None:
    """Raise UserError unless the row has both keys, and the generation as text."""
    for key in ("gold", "generation"):
        if key not in row:
            raise _refused(where, sorted(row), f"the key '{key}' among them")
    if not isinstance(row["generation"], str):
        raise _refused(f"{where}: generation", row["generation"], "a string")


def _parse_gold(value: Any, key: str) -> Gold:
    known = [field.name for field in fields(Gold)]
    entries: Any = value if isinstance(value, dict) else {"answer": value}
    given = {name: own for name, own in entries.items() if not is_absent(own)}
    answer = given.get("answer")
    given["answer"] = number_text(answer) or answer
    if not isinstance(given["answer"], str) or set(given) - set(known):
        expected = f"a string, a number or an object with 'answer' and some of {', '.join(known)}"
        raise _refused(key, value, expected)
    try:
        return Gold(**given)
    except ValueError as error:
        raise UserError(f"{key}: {error}") from error


def _line(row: dict[str, Any]) -> str:
    """A row as JSON. Half a surrogate pair, which is no text, stays the escape that it was."""
    text = json.dumps(row, ensure_ascii=False, default=str)
    return (json.dumps(row, default=str) if NO_TEXT.search(text) else text) + "\n"


def _refused(where: str, value: object, expected: str) -> UserError:
    """The error of a value in a file, whose name and line it keeps whole."""
    return UserError(f"{where}: {shown(value)}: expected {expected}")
