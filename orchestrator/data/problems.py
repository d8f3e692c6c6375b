r"""Reads problems from rows of training and benchmark files.

A row of a training file is {id, problem, answer}. Benchmark files keep their own field names and
answer forms: the text is `problem` or `question`; the id is `id` or `unique_id`, else the row's
number; the gold is `answer`, OlympiadBench's `final_answer`, or the last box of a `solution`.
GSM8K's answers are whole solutions that end in `#### gold`. Field names are case-insensitive.

Each source has golds of its own. Benchmarks and training files take the row's answer, and a training
row without one has no gold and no reward. OpenThoughts takes the majority of a problem's solutions
(`data.training_set` asks `data.majority`). Sums of the embedded world come with theirs
(`data.arithmetic`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.config import Data
from orchestrator.data.files import data_file, read_jsonl, text_field, verify_sha256
from orchestrator.errors import UserError
from orchestrator.grading.grader import Gold, last_boxed

TEXT_FIELDS = ("problem", "question")
ID_FIELDS = ("id", "unique_id")
GSM8K_MARK = "####"


@dataclass(frozen=True)
class Problem:
    """A problem with its gold, for training and benchmarks alike.

    `gold` is None if no answer is known; such a problem has no reward (never a reward of 0).
    """

    id: str
    text: str
    gold: Gold | None


def read_training_problems(data: Data, data_dir: str | None) -> list[Problem]:
    """Read the rows of all training files, in order. A row without an answer has no gold.

    Raises UserError if a file is missing or changed, or a row has no id or text.
    """
    problems: list[Problem] = []
    for entry in data.files:
        path = data_file(entry.file, data_dir)
        rows = read_jsonl(path)
        verify_sha256(path, entry.sha256)
        for line, row in enumerate(rows, 1):
            gold = None
            if row.get("answer") is not None:
                gold = Gold(text_field(path, line, row, "answer"))
            text = text_field(path, line, row, "problem")
            problems.append(Problem(text_field(path, line, row, "id"), text, gold))
    return problems


def benchmark_problem(where: str, line: int, row: dict[str, Any]) -> Problem:
    """Read one row of a benchmark, such as `{"question": "1+1=?", "answer": 2}`.

    Raises UserError that names `where`, the line and the field.
    """
    fields = {name.lower(): value for name, value in row.items()}
    text = next((name for name in TEXT_FIELDS if name in fields), None)
    if text is None:
        raise _lacks(where, line, " or ".join(TEXT_FIELDS), row)
    return Problem(
        _id(where, line, fields), text_field(where, line, fields, text), _gold(where, line, fields)
    )


def _id(where: str, line: int, fields: dict[str, Any]) -> str:
    name = next((name for name in ID_FIELDS if name in fields), None)
    if name is None:
        return str(line)
    value = fields[name]
    return str(value) if _is_number(value) else text_field(where, line, fields, name)


def _gold(where: str, line: int, fields: dict[str, Any]) -> Gold:
    """The published answer, with OlympiadBench's extra fields if a row has them."""
    tolerance = str(fields.get("error") or "").strip()
    try:
        absolute = float(tolerance) if tolerance else None
    except ValueError:
        raise UserError(f"{where} line {line}: error is {tolerance!r}: expected a number") from None
    return Gold(
        answer=_answer(where, line, fields),
        multiple=bool(fields.get("is_multiple_answer", False)),
        unit=fields.get("unit") or None,
        tolerance=absolute,
    )


def _answer(where: str, line: int, fields: dict[str, Any]) -> str:
    """The text of the gold: `answer`, else `final_answer`, else the box of `solution`."""
    if "answer" in fields:
        answer = fields["answer"]
    elif isinstance(fields.get("final_answer"), list):
        answer = ",".join(map(str, fields["final_answer"]))
    elif isinstance(fields.get("solution"), str):
        answer = last_boxed(fields["solution"])
    else:
        raise _lacks(where, line, "answer, final_answer or solution", fields)
    if _is_number(answer):
        return str(answer)
    text = text_field(where, line, {"answer": answer}, "answer")
    return text.rpartition(GSM8K_MARK)[2].strip() if GSM8K_MARK in text else text


def _lacks(where: str, line: int, wanted: str, row: dict[str, Any]) -> UserError:
    there = ", ".join(map(repr, row)) or "none"
    return UserError(f"{where} line {line}: no field {wanted}: expected one beside {there}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
