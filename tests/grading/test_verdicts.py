"""What counts as right: the cases of `verdicts.yaml`, each an answer that a careful reader accepts
or rejects.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.grading.gold import Gold
from orchestrator.grading.grader import Grade, Grader

SECTIONS = yaml.safe_load(Path(__file__).with_name("verdicts.yaml").read_text(encoding="utf-8"))
CASES = [pytest.param(case, id=case["why"]) for cases in SECTIONS.values() for case in cases]


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    """One grader for the table, with a deadline that a loaded machine keeps too."""
    with Grader(deadline_s=60.0) as quick:
        yield quick


@pytest.mark.parametrize("case", CASES)
def test_verdicts(grader: Grader, case: dict[str, Any]) -> None:
    gold = Gold(**case["gold"]) if isinstance(case["gold"], dict) else Gold(case["gold"])
    verdicts = [(answer, True) for answer in case["right"]] + [
        (answer, False) for answer in case["wrong"]
    ]
    for answer, correct in verdicts:
        assert grader.grade(gold, rf"so it is $\boxed{{{answer}}}$.") == Grade(correct, answer)


def test_every_case_accepts_or_rejects_something() -> None:
    """A number without quotes would be no text, and a misspelt key would leave out its answers."""
    for case in (case for cases in SECTIONS.values() for case in cases):
        assert set(case) == {"why", "gold", "right", "wrong"}
        answers = case["right"] + case["wrong"]
        assert answers, case["why"]
        assert all(isinstance(answer, str) for answer in answers), case["why"]
