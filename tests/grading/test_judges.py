"""A judge of one's own: found by name, in the evaluation's id, and loud where it fails."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.commands.grade import grade_file
from orchestrator.config import BenchmarkRun, Setup
from orchestrator.data.benchmarks import check_source
from orchestrator.errors import UserError
from orchestrator.experiment.evaluation_protocol import evaluation_id
from orchestrator.experiment.load import load_setup
from orchestrator.grading import gold as gold_module
from orchestrator.grading.gold import Gold
from orchestrator.grading.grader import Grader

JUDGE = """
import time

VERSION = {version}

def judge(gold, answer):
    if answer == "hang":
        time.sleep(600)
    if answer == "raise":
        raise ConnectionError("the server is away")
    return answer.lower() == gold.answer.lower()
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module `own_judge`, which this process and its grading process can import."""
    file = tmp_path / "own_judge.py"
    file.write_text(JUDGE.format(version=3))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_judge", raising=False)
    gold_module._own.cache_clear()
    return file


def setup_with(grader: str) -> Setup:
    setup = load_setup("arithmetic")
    runs = {"arithmetic_short": BenchmarkRun(grader=grader)}
    return replace(setup, evaluation=replace(setup.evaluation, benchmarks=runs))


def test_it_decides_and_its_failures_count_as_timed_out(own: Path) -> None:
    gold = Gold("Yes", judge="own_judge:judge")
    with Grader(deadline_s=2.0) as grader:
        grades = [
            grader.grade_answer(gold, answer) for answer in ("yes", "no", "raise", "hang", "YES")
        ]
        assert grader.grade_answer("1/2", "0.5").correct, (
            "the mathematical judge works in the same process"
        )
    assert [(each.correct, each.timed_out) for each in grades] == [
        *((True, False), (False, False)),
        *((False, True), (False, True), (True, False)),
    ]


def test_numerals_go_to_it_too(own: Path) -> None:
    with Grader() as grader:
        assert not grader.grade(Gold("7", judge="own_judge:judge"), r"\boxed{7.0}").correct
        assert grader.grade(Gold("7"), r"\boxed{7.0}").correct


def test_its_name_and_version_are_in_the_id_of_the_evaluation(own: Path) -> None:
    default, mine = setup_with("math"), setup_with("own_judge:judge")
    present = evaluation_id(mine, "arithmetic_short")
    assert present == evaluation_id(mine, "arithmetic_short", "3")
    older = [evaluation_id(mine, "arithmetic_short", version) for version in ("1", "2")]
    assert len({present, *older, evaluation_id(default, "arithmetic_short", "3")}) == 4


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("maths", "one of math, or module:function"),
        ("no_such_module:judge", "a module that Python can import"),
        ("own_judge:jugde", "which has no jugde"),
    ],
)
def test_a_name_that_no_judge_has_is_refused_in_a_line(own: Path, name: str, reason: str) -> None:
    with pytest.raises(
        UserError, match=r"evaluation\.benchmarks\.arithmetic_short\.grader: "
    ) as refused:
        check_source("arithmetic_short", BenchmarkRun(grader=name))
    assert repr(name) in str(refused.value)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_module_without_a_version_is_refused(own: Path) -> None:
    own.write_text(JUDGE.format(version="None"))
    with pytest.raises(UserError, match="VERSION = 1"):
        check_source("arithmetic_short", BenchmarkRun(grader="own_judge:judge"))


def test_trb_grade_takes_it(own: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"gold": "Yes", "generation": r"\boxed{YES}"}) + "\n")
    assert grade_file(file, None, "own_judge:judge").correct == 1
