"""`trb grade`: the one grader over a file of rows {gold, generation}."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from orchestrator.cores import cores_here
from orchestrator.errors import shown
from orchestrator.grading.gold import MATH, Gold
from orchestrator.grading.grader import Grade, Grader
from orchestrator.grading.judges import version_of
from orchestrator.records.files import write_atomically

# Each takes about 100 MB.
_MOST_WORKERS = 16
STDIN = "-"


@dataclass(frozen=True)
class GradeCounts:
    """Totals of a graded file."""

    n: int
    correct: int
    no_answer: int
    timed_out: int


def grade_file(path: Path, out: Path | None, judge: str = MATH) -> GradeCounts:
    """Grade a JSON Lines file of ``{gold, generation}`` rows, or standard input where the path is
    ``-``.

    The rows with their grades are written to ``out`` if given, which appears whole or not at all
    and may be ``path`` itself. ``gold`` is a string, a number or an object with Gold's fields. Rows
    keep their other fields and gain ``correct``, ``extracted``, and ``timed_out`` where true.
    ``judge`` decides where a gold names no other. Raises ValueError (one line: file, line, key,
    value, what is right) on unusable input.
    """
    version_of(judge, "--grader")
    rows = [
        (row, replace(gold, judge=judge) if gold.judge == MATH else gold)
        for row, gold in _read_rows(path)
    ]
    if out is not None and not out.parent.is_dir():
        raise ValueError(
            f"{out}: the folder {out.parent} does not exist; create it or choose another --out"
        )
    with Grader(workers=min(cores_here(), _MOST_WORKERS)) as grader:
        grades = grader.grade_many((gold, row["generation"]) for row, gold in rows)
    if out is not None:
        graded = [_graded(row, grade) for (row, _), grade in zip(rows, grades, strict=True)]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in graded)
        write_atomically(out, lines, shared=True)
    return GradeCounts(
        n=len(grades),
        correct=sum(grade.correct for grade in grades),
        no_answer=sum(grade.extracted is None for grade in grades),
        timed_out=sum(grade.timed_out for grade in grades),
    )


def _graded(row: dict[str, Any], grade: Grade) -> dict[str, Any]:
    """The row with its grade. A ``timed_out`` from an earlier grading goes."""
    kept = {key: value for key, value in row.items() if key != "timed_out"}
    graded = kept | {"correct": grade.correct, "extracted": grade.extracted}
    return graded | {"timed_out": True} if grade.timed_out else graded


def _read_rows(path: Path) -> Iterator[tuple[dict[str, Any], Gold]]:
    """Yield (row, gold) for each non-blank line. Raises ValueError naming the file and line."""
    try:
        text = (
            sys.stdin.buffer.read().decode("utf-8")
            if str(path) == STDIN
            else path.read_text(encoding="utf-8")
        )
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({error.strerror}): expected a JSON Lines file"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: byte {error.start} is not UTF-8: expected a UTF-8 JSON Lines file"
        ) from error
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            row = _parse_row(line, f"{path}:{number}")
            yield row, _parse_gold(row["gold"], f"{path}:{number}")


def _parse_row(line: str, where: str) -> dict[str, Any]:
    """One row with both keys present and a string generation. Raises ValueError starting with
    ``where``.
    """
    try:
        row = json.loads(line)
    except (
        ValueError,
        RecursionError,
    ) as error:  # ValueError: a number of thousands of digits, too
        raise ValueError(f"{where}: not JSON ({error}): expected one object per line") from error
    if not isinstance(row, dict):
        raise ValueError(
            f"{where}: found {_shown(row)}: expected an object with 'gold' and 'generation'"
        )
    for key in ("gold", "generation"):
        if key not in row:
            raise ValueError(f"{where}: key '{key}' is missing; the row has {_shown(sorted(row))}")
    if not isinstance(row["generation"], str):
        raise ValueError(
            f"{where}: key 'generation' is {_shown(row['generation'])}: expected a string"
        )
    return row


def _parse_gold(value: object, where: str) -> Gold:
    """A Gold from a row's value. Raises ValueError starting with ``where``."""
    known = [field.name for field in fields(Gold)]
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str):
        value = {"answer": value}
    if not isinstance(value, dict):
        raise ValueError(
            f"{where}: key 'gold' is {_shown(value)}: expected a string, a number or an object with {known}"
        )
    entries = cast(dict[str, Any], value)
    unknown = sorted(set(entries) - set(known))
    if unknown or "answer" not in entries:
        problem = f"has unknown fields {_shown(unknown)}" if unknown else "lacks the field 'answer'"
        raise ValueError(
            f"{where}: key 'gold' {problem}: expected a string or an object with {known}"
        )
    try:
        return Gold(**entries)
    except ValueError as error:
        raise ValueError(f"{where}: key 'gold': {error}") from error


def _shown(value: object) -> str:
    """A value for an error message, cut to 80 characters."""
    return shown(value)
