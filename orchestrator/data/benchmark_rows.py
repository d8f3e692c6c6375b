r"""Rows of benchmark files → problems, in the field names and answer forms of the files in use.

`problem` or `question`; `id` or `unique_id` (else the row's number); the gold is `answer`, OlympiadBench's
`final_answer`, or the last box of a `solution`. GSM8K's full solutions end in `#### gold`. Capitals do not matter.
"""

from __future__ import annotations

from typing import Any

from orchestrator.data.files import text_field
from orchestrator.data.problem import Problem
from orchestrator.errors import UserError
from orchestrator.grading.grader import Gold, last_boxed

TEXTS = ("problem", "question")
IDS = ("id", "unique_id")
FINAL_MARK = "####"


def benchmark_problem(where: str, line: int, row: dict[str, Any]) -> Problem:
    """One problem with its gold. UserError naming `where`, the line and the field."""
    fields = {name.lower(): value for name, value in row.items()}
    text = next((name for name in TEXTS if name in fields), None)
    if text is None:
        raise _lacks(where, line, " or ".join(TEXTS), row)
    return Problem(_id(where, line, fields), text_field(where, line, fields, text), _gold(where, line, fields))


def _id(where: str, line: int, fields: dict[str, Any]) -> str:
    name = next((name for name in IDS if name in fields), None)
    if name is None:
        return str(line)
    number = fields[name]
    return str(number) if _is_number(number) else text_field(where, line, fields, name)


def _gold(where: str, line: int, fields: dict[str, Any]) -> Gold:
    """The published answer with OlympiadBench's extra fields where a row has them."""
    tolerance = str(fields.get("error") or "").strip()
    try:
        absolute = float(tolerance) if tolerance else None
    except ValueError:
        raise UserError(f"{where} line {line}: error is {tolerance!r} — a number") from None
    return Gold(
        answer=_answer(where, line, fields),
        multiple=bool(fields.get("is_multiple_answer", False)),
        unit=fields.get("unit") or None,
        tolerance=absolute,
    )


def _answer(where: str, line: int, fields: dict[str, Any]) -> str:
    if "answer" not in fields and isinstance(fields.get("final_answer"), list):
        fields = {"answer": ",".join(map(str, fields["final_answer"]))}
    elif "answer" not in fields and isinstance(fields.get("solution"), str):
        fields = {"answer": last_boxed(fields["solution"])}
    if "answer" not in fields:
        raise _lacks(where, line, "answer, final_answer or solution", fields)
    answer = fields["answer"]
    if _is_number(answer):
        return str(answer)
    text = text_field(where, line, fields, "answer")
    return text.rpartition(FINAL_MARK)[2].strip() if FINAL_MARK in text else text


def _lacks(where: str, line: int, wanted: str, row: dict[str, Any]) -> UserError:
    there = ", ".join(map(repr, row)) or "none"
    return UserError(f"{where} line {line}: no field {wanted} — fields there: {there}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
