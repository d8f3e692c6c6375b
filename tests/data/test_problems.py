"""Rows of training and benchmark files: columns in use elsewhere, and values that only look like one."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import Data, DataFile
from orchestrator.data.files import file_sha256
from orchestrator.data.problems import (
    Problem,
    benchmark_problem,
    check_system,
    read_training_problems,
)
from orchestrator.errors import UserError
from orchestrator.grading.gold import Gold


def read(text: str) -> Problem:
    """The problem of a benchmark's row, given as JSON."""
    return benchmark_problem("f", 3, json.loads(text))


def refusal(text: str) -> str:
    with pytest.raises(UserError, match=r"^f line 3: ") as caught:
        read(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def training(folder: Path, *contents: str) -> list[Problem]:
    files: list[DataFile] = []
    for number, content in enumerate(contents):
        path = folder / f"{number}.jsonl"
        path.write_text(content)
        files.append(DataFile(path.name, file_sha256(path)))
    return read_training_problems(Data(files=files), str(folder))


def with_answer(fields: str) -> str:
    return f'{{"problem": "1+1", "answer": "2", {fields}}}'


# --- columns ---

VERL = {
    "data_source": "sums",
    "prompt": [{"role": "user", "content": "1+1"}],
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"index": 5},
}
TURNS = [{"from": "human", "value": "1+1"}, {"from": "gpt", "value": "It is \\boxed{3}."}]


@pytest.mark.parametrize(
    "row",
    [
        VERL,
        VERL | {"prompt": json.dumps(VERL["prompt"])},
        VERL | {"prompt": [{"role": "user", "content": [{"type": "text", "text": "1+1"}]}]},
        {"Prompt": "1+1", "Ground_Truth": 2},
        {"messages": VERL["prompt"], "answer": "2"},
        {"conversations": TURNS, "answer": 2},
        {"problem": None, "question": "1+1", "answer": None, "final_answer": "2"},
        {"question": "1+1", "answer": float("nan"), "solution": "so \\boxed{2}"},
        {"question": "1+1", "answer": "nan", "final_answer": [2]},
        {"question": "1+1", "answer": "One and one.\n#### 2"},
    ],
)
def test_columns_in_use_elsewhere(row: dict[str, Any]) -> None:
    assert benchmark_problem("f", 3, row) == Problem("3", "1+1", Gold("2"))


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ([], "prompt is []: expected a chat with a user turn"),
        ([{"role": "assistant", "content": "Hi"}], "prompt[0] is 'Hi': expected a user turn first"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "one user turn"),
        ([{"role": "tool", "content": "a"}], "the role of prompt[0] is 'tool': expected system,"),
        ([{"content": "a"}], "the role of prompt[0] is None"),
        (["a"], "prompt[0] is 'a': expected a turn {role, content}"),
        ([{"role": "user", "content": [{"type": "image"}]}], "prompt[0] is [{'type': 'image'}]"),
        ([{"role": "user", "content": "\ud800"}], "prompt[0] holds '\\ud800'"),
    ],
)
def test_chats_without_one_problem(turns: list[Any], words: str) -> None:
    assert words in refusal(json.dumps({"prompt": turns, "answer": "2"}))


def test_a_system_turn_is_that_of_the_setup() -> None:
    turns = [{"role": "system", "content": "Be brief. "}, *VERL["prompt"]]
    problem = read(json.dumps(VERL | {"prompt": turns}))
    assert (problem.text, problem.system) == ("1+1", "Be brief.")
    check_system([problem, read(json.dumps(VERL))], "Be brief.")
    for system in (None, "Be long."):
        with pytest.raises(UserError, match=r"prompt\.system: .*: expected 'Be brief\.', the syst"):
            check_system([problem], system)


def test_unknown_columns_are_listed() -> None:
    assert refusal('{"q": "1+1", "a": null}') == (
        "f line 3: no field problem, question, prompt, messages or conversations: "
        "expected one beside 'q', 'a' (without a value: 'a')"
    )
    assert "no field answer" in refusal('{"problem": "1+1", "gold": 2}')
    assert "'Answer' is" in refusal('{"problem": "1", "answer": 2, "Answer": 3}').replace(
        "Answer is", "'Answer' is"
    )


# --- values ---


@pytest.mark.parametrize(
    ("value", "gold"),
    [("3", "3"), ("3.0", "3.0"), ("-7", "-7"), ("1e22", "1" + "0" * 22), ("1e-7", "0.0000001")],
)
def test_numbers_are_answers(value: str, gold: str) -> None:
    assert read(f'{{"problem": "1", "answer": {value}}}').gold == Gold(gold)
    assert read(f'{{"problem": "1", "final_answer": [{value}]}}').gold == Gold(gold)


def test_decimals_of_parquet_are_numbers() -> None:
    row = {"id": Decimal("7"), "problem": "1", "answer": Decimal("2.50")}
    assert benchmark_problem("f", 1, row) == Problem("7", "1", Gold("2.50"))
    with pytest.raises(UserError, match="f line 1: no field answer"):
        benchmark_problem("f", 1, row | {"answer": Decimal("NaN")})


@pytest.mark.parametrize("value", ["NaN", "null", '""', '"nan"', '" "'])
def test_cells_without_a_value(value: str, tmp_path: Path) -> None:
    row = f'{{"problem": "1+1", "answer": {value}}}'
    assert "no field answer" in refusal(row)
    assert training(tmp_path, row) == [Problem("1", "1+1", None)]
    extra = f'"unit": {value}, "error": {value}, "is_multiple_answer": {value}'
    if "nan" not in value and value != '" "':
        assert read(with_answer(extra)).gold == Gold("2")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"problem": "1", "answer": Infinity}', "answer is inf: expected a text or a finite"),
        ('{"problem": "1", "answer": 1e400}', "answer is inf"),
        ('{"problem": "1", "answer": true}', "answer is True"),
        ('{"problem": "1", "answer": {"value": 2}}', "answer is {'value': 2}"),
        ('{"problem": "1", "answer": "\\ud800"}', "answer holds '\\ud800'"),
        ('{"problem": "1", "answer": "2\\u0000"}', "answer holds '\\x00'"),
        ('{"problem": "1", "final_answer": ["2", null]}', "expected a value for each answer"),
        ('{"problem": "1", "final_answer": [NaN]}', "no field answer"),
        ('{"problem": "1", "final_answer": [["2"]]}', "final_answer[0] is ['2']"),
        ('{"problem": "1", "final_answer": []}', "no field answer"),
        ('{"problem": "1", "answer": "####"}', "gold field 'answer' is ''"),
        ('{"problem": 5, "answer": 2}', "problem is 5: expected a non-empty string"),
        ('{"problem": "\\udfff", "answer": 2}', "problem holds '\\udfff'"),
        ('{"problem": "1", "answer": 2, "id": Infinity}', "id is inf"),
        ('{"problem": "1", "answer": 2, "id": "\\ud800"}', "id holds"),
        (with_answer('"unit": ["cm"]'), "unit is ['cm']"),
        (with_answer('"unit": "\\ud800"'), "unit holds"),
        (with_answer('"error": "-1"'), "error is '-1': expected a finite number ≥ 0"),
        (with_answer('"error": "inf"'), "error is 'inf'"),
        (with_answer('"error": 1e400'), "error is inf"),
        (with_answer('"error": true'), "error is True"),
        (with_answer('"is_multiple_answer": "maybe"'), "is_multiple_answer is 'maybe'"),
        (with_answer('"is_multiple_answer": 2'), "is_multiple_answer is 2: expected true or false"),
        (with_answer('"is_multiple_answer": [true]'), "is_multiple_answer is [True]"),
    ],
)
def test_values_of_a_wrong_type_are_one_line(row: str, words: str) -> None:
    assert words in refusal(row)


@pytest.mark.parametrize("value", ["true", '"True"', '" yes"', "1", "1.0"])
def test_flags_that_hold(value: str) -> None:
    assert read(with_answer(f'"is_multiple_answer": {value}')).gold == Gold("2", multiple=True)


@pytest.mark.parametrize("value", ["false", '"False"', '"no"', "0", "0.0", '"0"', '""', "null"])
def test_flags_that_do_not_hold(value: str) -> None:
    assert read(with_answer(f'"is_multiple_answer": {value}')).gold == Gold("2")


# --- training files ---


def test_training_rows_are_read_as_those_of_benchmarks(tmp_path: Path) -> None:
    rows = '{"id": 0, "question": "1+1", "answer": 2}\n{"question": "1+2"}\n'
    first, second = training(tmp_path, rows)
    assert (first, second) == (Problem("0", "1+1", Gold("2")), Problem("2", "1+2", None))


def test_numbers_of_rows_tell_files_apart(tmp_path: Path) -> None:
    problems = training(tmp_path, '{"problem": "1+1"}\n', '\n{"problem": "1+2"}\n')
    assert [problem.id for problem in problems] == ["0.jsonl:1", "1.jsonl:1"]


def test_the_line_at_fault_counts_blank_lines(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"0\.jsonl line 4: problem is 5"):
        training(tmp_path, '{"problem": "1+1"}\n\n\n{"problem": 5}\n')
