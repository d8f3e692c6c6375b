"""Golds where a data set publishes none: the answer that most of a problem's solutions agree on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from orchestrator.cores import cores_here
from orchestrator.data.cache import cached
from orchestrator.grading.grader import GRADER_VERSION, Grader

# Part of the cache's key: raise it with any change that can change a majority.
VERSION = 1
OUTCOMES = ("majority", "tied", "no_box")
# Spellings of one problem that are compared, the most frequent first; the comparisons grow with their square.
MAX_COMPARED = 64
# The most a comparison may cost, in seconds. It is short, for an answer that cannot be computed is compared with every
# class of its problem and costs the deadline each time.
DEADLINE_S = 2.0
MAX_GRADERS = 16
# Fewer are not worth the seconds that a grading process takes to start.
PROBLEMS_PER_GRADER = 256


@dataclass(frozen=True)
class Majority:
    """`answer` is the winner's most frequent spelling; None where there is no winner."""

    answer: str | None
    outcome: str  # one of OUTCOMES: `tied` if two classes share the highest count, `no_box` if nothing was answered


def majority(answers: Mapping[str, int], equal: Callable[[str, str], bool]) -> Majority:
    """The class of equal answers with the highest count; none if two classes share it.

    `answers` counts the spellings: `{"0.5": 7, "\\frac12": 4, "2": 1}`. `equal(gold, answer)` is the grader's verdict,
    which is not symmetric. An answer therefore joins the class whose most frequent spelling, as a gold, accepts it: the
    gold that comes out would grade every answer that voted for it as correct. Of spellings that are equally frequent
    the first in the alphabet counts.
    """
    if not answers:
        return Majority(None, "no_box")
    spellings = sorted(answers, key=lambda answer: (-answers[answer], answer))
    votes: dict[str, int] = {}  # most frequent spelling of each class → its answers so far
    uncounted = sum(answers.values())
    for position, answer in enumerate(spellings):
        # A spelling that is too rare to be compared counts as a class of its own.
        golds = votes if position < MAX_COMPARED else ()
        gold = next((gold for gold in golds if equal(gold, answer)), answer)
        votes[gold] = votes.get(gold, 0) + answers[answer]
        uncounted -= answers[answer]
        second, first = sorted([0, *votes.values()])[-2:]
        if first > second + uncounted:  # whatever the rest turns out to be equal to, so the grader need not be asked
            break
    winners = [gold for gold, count in votes.items() if count == max(votes.values())]
    return Majority(winners[0], "majority") if len(winners) == 1 else Majority(None, "tied")


def majorities(counted: Sequence[Mapping[str, int]]) -> list[Majority]:
    """The majority of each problem's answers by the project's grader, remembered in the user's cache folder."""
    key = json.dumps([VERSION, GRADER_VERSION, [sorted(answers.items()) for answers in counted]])
    name = f"majorities-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    rows = json.loads(cached(name, lambda: _to_text(_compute(counted))))
    return [Majority(answer, outcome) for answer, outcome in rows]


def _compute(counted: Sequence[Mapping[str, int]]) -> list[Majority]:
    """By several grading processes side by side, each with every so many-th problem."""
    graders = min(MAX_GRADERS, cores_here(), 1 + len(counted) // PROBLEMS_PER_GRADER)
    results: list[Majority] = [Majority(None, "no_box")] * len(counted)
    with ThreadPoolExecutor(graders) as pool:
        shares = pool.map(_with_grader, [counted[first::graders] for first in range(graders)])
        for first, share in enumerate(shares):
            results[first::graders] = share
    return results


def _with_grader(counted: Sequence[Mapping[str, int]]) -> list[Majority]:
    with Grader(deadline_s=DEADLINE_S) as grader:
        return [
            majority(answers, lambda gold, answer: grader.grade_answer(gold, answer).correct) for answers in counted
        ]


def _to_text(results: Sequence[Majority]) -> str:
    return json.dumps([[result.answer, result.outcome] for result in results]) + "\n"
