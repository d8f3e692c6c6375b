r"""Reads problems from rows of training and benchmark files, one reader for both.

The text of a problem is `problem` or `question`, or the one user turn of a chat: `prompt` (as verl
writes it), `messages` or `conversations`. The id is `id` or `unique_id`, else the row's number. The
gold is `answer`, OlympiadBench's `final_answer`, the `ground_truth` of verl's `reward_model` or of
the row, or the last box of a `solution`. GSM8K's answers are whole solutions that end in
`#### gold`. Field names are case-insensitive.

JSON and parquet bring values that only look like one: NaN, as pandas writes for an empty cell, counts
as absent like null, and `"False"` as false. Other values of a wrong type are refused.

Each source has golds of its own. Benchmarks and training files take the row's gold, and a training
row without one has no reward. OpenThoughts takes the majority of a problem's solutions
(`data.training_set` asks `data.openthoughts`). Sums of the embedded world come with theirs
(`data.arithmetic`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from orchestrator.config import Data, Setup
from orchestrator.data.files import data_file, numbered_rows, text_field, verify_sha256
from orchestrator.errors import UserError, refuse, shown
from orchestrator.grading.gold import Gold
from orchestrator.grading.notation import last_boxed

TEXT_FIELDS = ("problem", "question")
CHAT_FIELDS = ("prompt", "messages", "conversations")
ID_FIELDS = ("id", "unique_id")
# Words of columns that tables without booleans hold, in small letters.
FLAGS = {
    **dict.fromkeys(("true", "yes", "1", "1.0"), True),
    **dict.fromkeys(("false", "no", "0", "0.0"), False),
}
ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model"), "assistant"),
}
GSM8K_MARK = "####"


@dataclass(frozen=True)
class Problem:
    """A problem with its gold, for training and benchmarks alike.

    `gold` is None if no answer is known; such a problem has no reward (never a reward of 0).
    `system` is the system turn of a row that is a chat, which `check_system` compares.
    """

    id: str
    text: str
    gold: Gold | None
    system: str | None = None


def read_training_problems(data: Data, data_dir: str | None) -> list[Problem]:
    """Read the rows of all training files, in order. A row without an answer has no gold.

    Raises UserError if a file is missing or changed, or a row has no text.
    """
    problems: list[Problem] = []
    for entry in data.files:
        path = data_file(entry.file, data_dir)
        rows = list(numbered_rows(path))
        verify_sha256(path, entry.sha256)
        for number, (line, row) in enumerate(rows, 1):
            # Numbers of several files would repeat.
            name = str(number) if len(data.files) == 1 else f"{entry.file}:{number}"
            problems.append(_problem(str(path), line, row, name))
    return problems


def check_rows(setup: Setup, data_dir: str | None, batches: int) -> None:
    """Read the rows of all training files; UserError if `batches` steps need more prompts.

    Over-long prompts count here, since only a tokenizer finds them.
    """
    problems = read_training_problems(setup.data, data_dir)
    check_system(problems, setup.prompt.system)
    each = setup.training.prompts_per_step
    distinct = len({problem.text for problem in problems})
    if distinct < batches * each:
        raise UserError(
            f"data: {distinct} different problems: expected {batches * each} "
            f"for {batches} steps of {each}"
        )


def benchmark_problem(
    where: str, line: int, row: dict[str, Any], number: int | None = None
) -> Problem:
    """Read one row of a benchmark, such as `{"question": "1+1=?", "answer": 2}`.

    A row without an id is called `number`, which is `line` by default. Raises UserError that names
    `where`, the line and the field.
    """
    problem = _problem(where, line, row, str(number or line))
    if problem.gold is None:
        golds = "answer, final_answer, reward_model.ground_truth or solution with a box"
        raise _lacks(where, line, golds, row)
    return problem


def check_system(problems: Iterable[Problem], system: str | None) -> None:
    """Raise UserError on the first problem with a system turn other than the setup's `system`.

    Prompts are made with the setup's own system prompt, so another one would be lost in silence.
    """
    for problem in problems:
        if problem.system is not None and problem.system != (system or "").strip():
            expected = f"{shown(problem.system)}, the system turn of problem {problem.id}"
            raise refuse("prompt.system", system, f"{expected}, or rows without one")


def is_absent(value: object) -> bool:
    """Whether a value of JSON or parquet stands for none: null, or NaN."""
    return value is None or (isinstance(value, float | Decimal) and math.isnan(value))


def number_text(value: object) -> str | None:
    """A finite number written out, `0.0000001` for 1e-7; None for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if isinstance(value, int):
        return str(value)
    return (
        format(Decimal(repr(value)) if isinstance(value, float) else value, "f")
        if math.isfinite(value)
        else None
    )


def _problem(where: str, line: int, row: dict[str, Any], name: str) -> Problem:
    """Read one row; `name` is its id if it has none."""
    fields: dict[str, Any] = {}
    for column, value in row.items():
        if is_absent(value):
            continue
        if fields.setdefault(column.lower(), value) != value:
            raise _refused(
                where, line, column, value, f"one value, as {column.lower()} has another"
            )
    text, system = _text(where, line, fields, row)
    for field in ID_FIELDS:
        if field in fields:
            name = number_text(fields[field]) or text_field(where, line, fields, field)
            break
    return Problem(name, text, _gold(where, line, fields), system)


# --- the text ---


def _text(
    where: str, line: int, fields: dict[str, Any], row: dict[str, Any]
) -> tuple[str, str | None]:
    """The problem of a row, and its system turn if it is a chat."""
    for name in (*TEXT_FIELDS, *CHAT_FIELDS):
        if name not in fields:
            continue
        turns = _turns(fields[name]) if name in CHAT_FIELDS else None
        if turns is None:
            return text_field(where, line, fields, name), None
        return _of_chat(where, line, name, turns)
    raise _lacks(where, line, "problem, question, prompt, messages or conversations", row)


def _turns(value: Any) -> list[Any] | None:
    """The turns of a chat, which tables without nesting hold as JSON; None if it is none."""
    if isinstance(value, str) and value.lstrip().startswith("[{"):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, list) else None


def _of_chat(where: str, line: int, name: str, turns: list[Any]) -> tuple[str, str | None]:
    """The one user turn of a chat, and its system turn; what assistants say after it is left out."""
    texts: dict[str, str] = {}
    for position, turn in enumerate(turns):
        place = f"{name}[{position}]"
        if not isinstance(turn, dict):
            raise _refused(where, line, place, turn, "a turn {role, content} or {from, value}")
        said = turn.get("role", turn.get("from"))
        role = ROLES.get(said.lower()) if isinstance(said, str) else None
        if role is None:
            raise _refused(where, line, f"the role of {place}", said, "system, user or assistant")
        content = _joined(turn["content"] if "content" in turn else turn.get("value"))
        if role == "system" and not (is_absent(content) or content == ""):
            text = text_field(where, line, {place: content}, place).strip()
        elif role == "user":
            text = text_field(where, line, {place: content}, place)
        elif role == "assistant" and "user" not in texts:
            raise _refused(where, line, place, content, "a user turn first, which is the problem")
        else:
            continue
        if role in texts:
            raise _refused(where, line, place, content, f"one {role} turn")
        texts[role] = text
    if "user" not in texts:
        raise _refused(where, line, name, turns, "a chat with a user turn, which is the problem")
    return texts["user"], texts.get("system")


def _joined(content: Any) -> Any:
    """The text of a turn that is a list of parts, `[{"type": "text", "text": "1+1=?"}]`."""
    if not isinstance(content, list):
        return content
    texts: list[str] = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            return content  # a turn with a picture stays a list, which is refused as no text
        texts.append(text)
    return "".join(texts)


# --- the gold ---


def _gold(where: str, line: int, fields: dict[str, Any]) -> Gold | None:
    """The published answer, with OlympiadBench's extra fields if a row has them."""
    answer = _answer(where, line, fields)
    if answer is None:
        return None
    unit = fields.get("unit")
    if isinstance(unit, str) and not unit.strip():
        unit = None
    elif unit is not None:
        unit = text_field(where, line, fields, "unit")
    try:
        return Gold(
            answer,
            multiple=_flag(where, line, fields, "is_multiple_answer"),
            unit=unit,
            tolerance=_tolerance(where, line, fields),
        )
    except ValueError as error:
        raise UserError(f"{where} line {line}: {error}") from None


def _answer(where: str, line: int, fields: dict[str, Any]) -> str | None:
    """The text of the gold; None if no field has one."""
    model = fields.get("reward_model")
    candidates = {
        "answer": fields.get("answer"),
        "final_answer": fields.get("final_answer"),
        "reward_model.ground_truth": model.get("ground_truth") if isinstance(model, dict) else None,
        "ground_truth": fields.get("ground_truth"),
    }
    for name, value in candidates.items():
        if name == "final_answer" and isinstance(value, list):
            answer = _listed(where, line, name, value)
        else:
            answer = _of_value(where, line, name, value)
        if answer is not None:
            return answer.rpartition(GSM8K_MARK)[2].strip() if GSM8K_MARK in answer else answer
    solution = fields.get("solution")
    boxed = last_boxed(solution) if isinstance(solution, str) else None
    return _of_value(where, line, "solution", boxed)


def _listed(where: str, line: int, name: str, values: list[Any]) -> str | None:
    """The elements of a list as one gold; None if none of them has a value."""
    texts: list[str | None] = []
    for position, value in enumerate(values):
        texts.append(_of_value(where, line, f"{name}[{position}]", value))
    given = [text for text in texts if text is not None]
    if given and len(given) < len(texts):
        raise _refused(where, line, name, values, "a value for each answer")
    return ",".join(given) or None


def _of_value(where: str, line: int, name: str, value: Any) -> str | None:
    """The text of an answer that is a text or a number; None for an empty cell of a table."""
    if is_absent(value) or (isinstance(value, str) and value.strip().lower() in ("", "nan")):
        return None
    if isinstance(value, str):
        return text_field(where, line, {name: value}, name)
    text = number_text(value)
    if text is None:
        raise _refused(where, line, name, value, "a text or a finite number")
    return text


def _flag(where: str, line: int, fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if is_absent(value) or value == "":
        return False
    flag = FLAGS.get(str(value).strip().lower())
    if flag is None:
        raise _refused(where, line, name, value, "true or false")
    return flag


def _tolerance(where: str, line: int, fields: dict[str, Any]) -> float | None:
    """OlympiadBench's `error`, a number that may be written as text."""
    text = _of_value(where, line, "error", fields.get("error"))
    try:
        tolerance = float(text) if text else None
    except ValueError:
        tolerance = math.nan
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise _refused(where, line, "error", fields["error"], "a finite number ≥ 0")
    return tolerance


def _refused(where: str, line: int, name: str, value: object, expected: str) -> UserError:
    return UserError(f"{where} line {line}: {name} is {shown(value)}: expected {expected}")


def _lacks(where: str, line: int, wanted: str, row: dict[str, Any]) -> UserError:
    """The error of a row without a field that has a value; it lists the fields that are there."""
    empty = [name for name, value in row.items() if is_absent(value) or value == ""]
    there = ", ".join(map(repr, row)) or "none"
    hint = f" (without a value: {', '.join(map(repr, empty))})" if empty else ""
    return UserError(f"{where} line {line}: no field {wanted}: expected one beside {there}{hint}")
