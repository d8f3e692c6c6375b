"""The majority of a problem's answers: classes of equal answers, ties, and no more comparisons than
needed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.data import majority as module
from orchestrator.data.majority import MAX_COMPARED, Majority, majorities, majority


def same_first_letter(gold: str, answer: str) -> bool:
    return gold[0] == answer[0]


def never(gold: str, answer: str) -> bool:
    pytest.fail(f"{gold} and {answer} were compared")


def test_no_answers() -> None:
    assert majority({}, never) == Majority(None, "no_box")


@pytest.mark.parametrize("answers", [{"7": 1}, {"7": 3, "8": 2}, {"7": 5, "8": 1, "9": 1}])
def test_more_than_half_needs_no_comparison(answers: dict[str, int]) -> None:
    assert majority(answers, never) == Majority("7", "majority")


def test_equal_answers_vote_together() -> None:
    assert majority({"b": 2, "a1": 1, "a2": 1, "a3": 1}, same_first_letter) == Majority(
        "a1", "majority"
    )


def test_the_most_frequent_spelling_is_the_gold() -> None:
    assert majority({"a1": 1, "a2": 2, "b": 2, "a3": 2}, same_first_letter) == Majority(
        "a2", "majority"
    )


@pytest.mark.parametrize(
    "answers", [{"a": 1, "b": 1}, {"a": 2, "b1": 1, "b2": 1}, {"a": 1, "b": 1, "c": 1}]
)
def test_ties_have_no_gold(answers: dict[str, int]) -> None:
    assert majority(answers, same_first_letter) == Majority(None, "tied")


def test_the_order_of_the_rows_does_not_matter() -> None:
    answers = {"a1": 2, "b1": 2, "a2": 1, "b2": 1, "c": 1, "a3": 1}
    found = {
        majority(dict(order), same_first_letter)
        for order in itertools.permutations(answers.items())
    }
    assert found == {Majority("a1", "majority")}


def by_classes(answers: Mapping[str, int]) -> str | None:
    """The first letter with most votes, counted in full; None if two have as many."""
    votes = {
        letter: sum(n for a, n in answers.items() if a[0] == letter)
        for letter in {a[0] for a in answers}
    }
    best = [letter for letter, count in votes.items() if count == max(votes.values())]
    return best[0] if len(best) == 1 else None


def test_stopping_early_changes_no_outcome() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        answers = {f"{rng.choice('abcd')}{i}": rng.randint(1, 4) for i in range(rng.randint(1, 8))}
        found = majority(answers, same_first_letter)
        assert (found.answer[0] if found.answer else None) == by_classes(answers)
        assert found.outcome == ("majority" if found.answer else "tied")


def test_a_problem_of_many_answers_costs_a_bounded_number_of_comparisons() -> None:
    asked = []
    found = majority(
        {f"{i:04}": 1 for i in range(3000)},
        lambda gold, answer: asked.append((gold, answer)) or False,
    )
    assert found == Majority(None, "tied")
    assert len(asked) == MAX_COMPARED * (MAX_COMPARED - 1) // 2


COUNTED: list[dict[str, int]] = [
    {r"\frac{1}{2}": 1, "0.5": 1, "2": 1},
    {r"\frac{": 1, r"\sqrt{2}": 1, r"\sqrt 2": 1},
    {"4": 1, "5": 1},
    {},
    {r"\text{(C)}": 2, "C": 1, "A": 2},
]
PLAIN: list[dict[str, int]] = [{"4": 1, "5": 1, "4.0": 1}, {"4": 1, "5": 1}, {}]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "trb"


def test_the_grader_decides_what_is_equal(cache: Path) -> None:
    found = majorities(COUNTED)
    assert [each.outcome for each in found] == [
        "majority",
        "majority",
        "tied",
        "no_box",
        "majority",
    ]
    assert [each.answer for each in found] == ["0.5", r"\sqrt 2", None, None, r"\text{(C)}"]


def test_problems_are_shared_out_and_come_back_in_order(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = majorities(PLAIN * 5)
    monkeypatch.setattr(module, "PROBLEMS_PER_GRADER", 2)
    monkeypatch.setattr(module, "cores_here", lambda: 4)
    next(cache.glob("majorities-*.json")).unlink()
    assert majorities(PLAIN * 5) == alone
    assert [each.answer for each in alone[:3]] == ["4", None, None]


def test_majorities_are_computed_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = majorities(PLAIN)
    (kept,) = cache.glob("majorities-*.json")
    text = kept.read_text()
    with monkeypatch.context() as patch:
        patch.setattr(module, "Grader", lambda **_: pytest.fail("computed again"))
        assert majorities(PLAIN) == first
    kept.unlink()
    majorities(PLAIN)
    assert kept.read_text() == text


def test_what_a_majority_depends_on_names_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    majorities(PLAIN)
    majorities(PLAIN[:2])
    monkeypatch.setattr(module, "GRADER_VERSION", "later")
    majorities(PLAIN)
    assert len(list(cache.glob("majorities-*.json"))) == 3
