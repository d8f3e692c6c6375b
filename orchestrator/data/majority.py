"""Golds of OpenThoughts, which has none of its own: the majority answer of a problem's solutions.

`data.problems` says where the golds of other sources come from.
"""

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
# Spellings of one problem that are compared, most frequent first; comparisons grow quadratically.
MAX_COMPARED = 64
# The limit of one comparison, in seconds. It is short because an answer that cannot be computed is
# compared with every class of its problem and costs the deadline each time.
DEADLINE_S = 2.0
MAX_GRADERS = 16
# With fewer problems, a grading process does not repay the seconds of its start.
PROBLEMS_PER_GRADER = 256


@dataclass(frozen=True)
class Majority:
    """The result of a vote: `answer` is the winner's most frequent spelling, None if none won."""

    answer: str | None
    outcome: str  # one of OUTCOMES: `tied` if two classes lead, `no_box` without answers


def majority(answers: Mapping[str, int], equal: Callable[[str, str], bool]) -> Majority:
    """Find the class of equal answers with the highest count; no answer if two classes share it.

    `answers` counts the spellings: `{"0.5": 7, "\\frac12": 4, "2": 1}`. `equal(gold, answer)` is
    the grader's verdict, which is not symmetric. An answer therefore joins the class whose most
    frequent spelling, as a gold, accepts it: the winning gold grades all of its votes as correct.
    Ties of spellings go to the alphabetically first.
    """
    if not answers:
        return Majority(None, "no_box")
    spellings = sorted(answers, key=lambda answer: (-answers[answer], answer))
    votes: dict[str, int] = {}  # most frequent spelling of each class → its answers so far
    uncounted = sum(answers.values())
    for position, answer in enumerate(spellings):
        gold = answer  # a class of its own, unless an earlier one accepts it
        if position < MAX_COMPARED:  # spellings too rare to be compared join no class
            for earlier in votes:
                if equal(earlier, answer):
                    gold = earlier
                    break
        votes[gold] = votes.get(gold, 0) + answers[answer]
        uncounted -= answers[answer]
        second, first = sorted([0, *votes.values()])[-2:]
        if first > second + uncounted:  # the rest cannot change the winner, and needs no grading
            break
    most = max(votes.values())
    winners = [gold for gold, count in votes.items() if count == most]
    return Majority(winners[0], "majority") if len(winners) == 1 else Majority(None, "tied")


def majorities(counted: Sequence[Mapping[str, int]]) -> list[Majority]:
    """The majority of each problem's answers by the project's grader, kept in the user's cache."""
    key = json.dumps([VERSION, GRADER_VERSION, [sorted(answers.items()) for answers in counted]])
    name = f"majorities-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    rows = json.loads(cached(name, lambda: _to_text(_compute(counted))))
    return [Majority(answer, outcome) for answer, outcome in rows]


def _compute(counted: Sequence[Mapping[str, int]]) -> list[Majority]:
    """Compute majorities with several grading processes in parallel, problems dealt out in turn."""
    graders = min(MAX_GRADERS, cores_here(), 1 + len(counted) // PROBLEMS_PER_GRADER)
    results: list[Majority] = [Majority(None, "no_box")] * len(counted)
    with ThreadPoolExecutor(graders) as pool:
        shares = pool.map(_with_grader, [counted[first::graders] for first in range(graders)])
        for first, share in enumerate(shares):
            results[first::graders] = share
    return results


def _with_grader(counted: Sequence[Mapping[str, int]]) -> list[Majority]:
    with Grader(deadline_s=DEADLINE_S) as grader:

        def equal(gold: str, answer: str) -> bool:
            return grader.grade_answer(gold, answer).correct

        return [majority(answers, equal) for answers in counted]


def _to_text(results: Sequence[Majority]) -> str:
    return json.dumps([[result.answer, result.outcome] for result in results]) + "\n"
