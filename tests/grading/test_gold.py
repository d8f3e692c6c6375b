"""The published golds against themselves in other spellings, and against each other."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.grading.gold import Gold, plain_number
from orchestrator.grading.grader import Grader

EVAL_FILES = (
    "math500",
    "olympiadbench",
    "olympiadbench_674",
    "amc23",
    "amc22_23",
    "aime24",
    "aime25",
    "gsm8k_test",
)
# Of the training golds every so many-th, which takes seconds.
TRAIN_FILES = {"math_train": 9, "gsm8k_train_sample": 9, "dapo17k_sample": 9}


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    """Both cores, with a deadline that a loaded machine keeps too."""
    with Grader(deadline_s=60.0, workers=2) as quick:
        yield quick


def read(name: str) -> list[tuple[dict[str, Any], Gold]]:
    """(row, gold) of a file under TRB_DATA_DIR; skips the test if that is unset."""
    folder = os.environ.get("TRB_DATA_DIR")
    if not folder:
        pytest.skip(
            "TRB_DATA_DIR is unset: set it to the folder of eval/*.jsonl and train/*.jsonl to check their golds"
        )
    path = Path(folder) / ("eval" if name in EVAL_FILES else "train") / f"{name}.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(row, gold_of(row)) for row in rows]


def gold_of(row: dict[str, Any]) -> Gold:
    """A benchmark row's gold."""
    tolerance = float(row["error"]) if row.get("error") else None
    return Gold(row["answer"], bool(row.get("is_multiple_answer")), row.get("unit"), tolerance)


def respelled(answer: str) -> str:
    """The same answer as a model might write it."""
    said = answer.strip("$").replace(", ", ",")
    said = re.sub(r"\\[dt]?frac", r"\\dfrac", said)
    said = re.sub(r"\\(?:left|right|!)(?![a-z])", "", said)
    said = re.sub(r"\\(?:mbox|text)\{", r"\\textrm{", said)
    said = re.sub(r"(?<=\d) ?\\(pi|sqrt)", r"\\,\\\1", said)
    return re.sub(r"\^\s*\{?\\circ\s*\}?", "°", said)


def value(answer: str) -> float | None:
    """A plainly numeric gold's value."""
    number = plain_number(answer.strip("$").replace(",", ""))
    return None if number is None else float(number)


@pytest.mark.parametrize("name", [*EVAL_FILES, *TRAIN_FILES])
def test_golds_are_right_against_themselves_and_wrong_against_their_neighbours(
    grader: Grader, name: str
) -> None:
    rows = read(name)[:: TRAIN_FILES.get(name, 1)]
    answers = [gold.answer for _, gold in rows]
    own = [
        (gold, rf"\boxed{{1717171}} hence \boxed{{{respelled(gold.answer)}}}") for _, gold in rows
    ]
    grades = grader.grade_many(own)
    assert [
        (gold.answer, text)
        for (gold, text), grade in zip(own, grades, strict=True)
        if not grade.correct
    ] == []
    others = [
        (gold, rf"\boxed{{{other}}}")
        for (_, gold), other in zip(rows, answers[1:] + answers[:1], strict=True)
        if None not in (value(gold.answer), value(other)) and value(gold.answer) != value(other)
    ]
    grades = grader.grade_many(others)
    assert [
        (gold.answer, text)
        for (gold, text), grade in zip(others, grades, strict=True)
        if grade.correct
    ] == []


def test_both_olympiad_editions_agree_where_their_golds_do(grader: Grader) -> None:
    """Only the degree sign of 2817 differs in writing."""
    old = {row["id"]: gold for row, gold in read("olympiadbench")}
    changed = [row for row, _ in read("olympiadbench_674") if row["answer"] != row["answer_675"]]
    assert all(
        grader.grade(old[row["id"]], rf"\boxed{{{row['answer'].strip('$')}}}").correct
        for row in changed
    )


def test_published_math_solutions_grade_right(grader: Grader) -> None:
    rows = read("math500")
    grades = grader.grade_many([(gold, row["solution"]) for row, gold in rows])
    assert [
        row["id"] for (row, _), grade in zip(rows, grades, strict=True) if not grade.correct
    ] == []
