"""Training problems that stand in a benchmark."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from orchestrator.config import BenchmarkRun, Data, Setup
from orchestrator.data.files import file_sha256
from orchestrator.data.overlap import find_overlap, normalised, overlap_lines
from orchestrator.data.problems import Problem
from orchestrator.experiment.load import load_setup

BALLS = [f"A box holds {i} red and {i + 1} blue balls. How many are in it?" for i in range(5)]


def problems(*texts: str) -> list[Problem]:
    return [Problem(str(number), text, None) for number, text in enumerate(texts)]


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """A setup that trains on files, with the benchmark `balls` and one of a hub."""
    path = tmp_path / "balls.jsonl"
    path.write_text("".join(json.dumps({"problem": text, "answer": 1}) + "\n" for text in BALLS))
    balls = BenchmarkRun(path=str(path), revision=file_sha256(path), problems=5, title="Balls")
    far = BenchmarkRun(path="owner/far", revision="0" * 40, problems=5)
    loaded = load_setup("arithmetic")
    evaluation = dataclasses.replace(loaded.evaluation, benchmarks={"balls": balls, "far": far})
    return dataclasses.replace(loaded, data=Data(), evaluation=evaluation)


def test_copies_are_counted_and_named(setup: Setup) -> None:
    copies = [BALLS[0], BALLS[1].replace(" ", "  "), f"{BALLS[2].lower()} "]
    found = find_overlap(setup, None, problems("1+1", *copies, "2+2"), ["1+1", copies[1]])
    assert found == {
        "balls": {"problems": 3, "of": 5, "used": 1, "example": BALLS[1]},
    }
    assert overlap_lines(setup, found, used=2) == [
        '3 of 5 training problems (1 of the 2 used) stand in Balls, e.g. "' + BALLS[1] + '"',
        "training problems were not compared with far",
    ]


def test_none_is_said_as_well(setup: Setup) -> None:
    found = find_overlap(setup, None, problems("1+1", "1+2"), [])
    assert overlap_lines(setup, found, used=1)[0] == "none of 2 training problems stands in Balls"


def test_instructions_around_all_problems_hide_no_copy(setup: Setup) -> None:
    asked = [f"Solve this. {text}\nRemember to box it." for text in ("1+1?", BALLS[3], "4?")]
    assert find_overlap(setup, None, problems(*asked), [])["balls"]["problems"] == 1


def test_generated_sums_leave_out_generated_benchmarks() -> None:
    setup = load_setup("arithmetic")
    assert find_overlap(setup, None, problems("1+1=?"), []) == {}
    assert overlap_lines(setup, {}, used=1) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [("Find $x^2$.", "find  x^2"), ("\\(x\\) is 3.5", "x is $3.5$"), ("ＡＢ “c”", "ab c")],
)
def test_spellings_of_one_text(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(("one", "other"), [("3.5", "35"), ("1+2", "1-2"), ("5!", "5"), ("x", "y")])
def test_texts_that_stay_apart(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)
