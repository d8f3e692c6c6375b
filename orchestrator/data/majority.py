"""Golds where a data set has none: the answer that most of a problem's solutions agree on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from orchestrator.data.cache import cached
from orchestrator.grading.grader import GRADER_VERSION, Grader

# Part of the cache's key: raise it with any change that can change a majority.
VERSION = 1
OUTCOMES = ("majority", "tied", "no_box")
# Spellings of one problem that are compared, the most frequent first; the comparisons grow with their square.
MAX_COMPARED = 64
# The most a comparison may cost, in seconds: one answer that cannot be computed meets all the others of its problem.
DEADLINE_S = 2.0
MAX_GRADERS = 16
PROBLEMS_PER_GRADER = 256  # fewer are not worth the seconds that a grading process takes to start


@dataclass(frozen=True)
class Majority:
    """`answer` is the winner's most frequent spelling; None where there is no winner."""

    answer: str | None
    outcome: str  # one of OUTCOMES


def majority(answers: Mapping[str, int], equal: Callable[[str, str], bool]) -> Majority:
    """The class of equal answers with the highest count; none if two share it.

    `equal(gold, answer)` is the grader's verdict. An answer joins the class whose most frequent spelling would
    reward it as a gold, so the gold rewards every vote it won by. Of spellings that are as frequent the first in the
    alphabet counts. Compares no more than it takes to know the winner.
    """
    if not answers:
        return Majority(None, "no_box")
    spellings = sorted(answers, key=lambda answer: (-answers[answer], answer))
    votes: dict[str, int] = {}
    left = sum(answers.values())
    for position, answer in enumerate(spellings):
        compared = votes if position < MAX_COMPARED else ()
        home = next((gold for gold in compared if equal(gold, answer)), answer)
        votes[home] = votes.get(home, 0) + answers[answer]
        left -= answers[answer]
        second, first = sorted([0, *votes.values()])[-2:]
        if first > second + left:  # whatever the rest turns out to be equal to
            break
    winners = [answer for answer, count in votes.items() if count == max(votes.values())]
    return Majority(winners[0], "majority") if len(winners) == 1 else Majority(None, "tied")


def majorities(counted: Sequence[Mapping[str, int]]) -> list[Majority]:
    """`majority` of each problem's answers with the project's grader; remembered in the user's cache folder."""
    key = json.dumps([VERSION, GRADER_VERSION, [sorted(answers.items()) for answers in counted]])
    name = f"majorities-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    found = json.loads(cached(name, lambda: _compute(counted)))
    return [Majority(answer, outcome) for answer, outcome in found]


def _compute(counted: Sequence[Mapping[str, int]]) -> str:
    """The cache's text, by several grading processes side by side."""
    graders = min(MAX_GRADERS, os.cpu_count() or 1, 1 + len(counted) // PROBLEMS_PER_GRADER)
    with ThreadPoolExecutor(graders) as pool:
        parts = list(pool.map(_with_grader, (counted[first::graders] for first in range(graders))))
    found = [parts[index % graders][index // graders] for index in range(len(counted))]
    return json.dumps([[each.answer, each.outcome] for each in found]) + "\n"


def _with_grader(counted: Sequence[Mapping[str, int]]) -> list[Majority]:
    with Grader(deadline_s=DEADLINE_S) as grader:
        return [
            majority(answers, lambda gold, answer: grader.grade_answer(gold, answer).correct) for answers in counted
        ]
