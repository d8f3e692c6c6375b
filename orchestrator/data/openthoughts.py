"""OpenThoughts: its problems, and the golds that it lacks, the majority answer of the solutions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.config import Data
from orchestrator.cores import cores_here
from orchestrator.data.files import (
    NO_TEXT,
    cached,
    check_hub_id,
    is_cached,
    iterate_hub,
    iterate_rows,
    verify_sha256,
)
from orchestrator.errors import UserError
from orchestrator.grading.gold import GRADER_VERSION
from orchestrator.grading.grader import Grader
from orchestrator.grading.notation import MAX_ANSWER_CHARS, last_boxed, without_thoughts

MATH_SOURCE = "ai2-adapt-dev/openmath-2-math"
COLUMNS = ("domain", "source", "conversations")
# Part of the cache's key: raise it with any change to the extract of the rows.
VERSION = 1
# Characters before the last box that are read with it.
CONTEXT_CHARS = 4096


@dataclass(frozen=True)
class Thought:
    """A distinct problem: its first row, and counts of the boxed answers of all its rows."""

    row: int
    text: str
    answers: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Thoughts:
    """The distinct math problems in row order, and counts of all rows and of dropped rows."""

    problems: list[Thought]
    counts: dict[str, int]  # rows, not_math, malformed, repeats


def load_thoughts(data: Data) -> Thoughts:
    """Load problems and answers for training. UserError if the data are unavailable or changed."""
    if not data.path:
        raise UserError(
            "data.path: not set: expected a hub id such as open-thoughts/OpenThoughts3-1.2M, "
            "or a local file"
        )
    if Path(data.path).exists():
        verify_sha256(Path(data.path), data.revision)
    else:
        check_hub_id("data", data.path, data.revision)
    where = data.path
    text = cached(_cache_name(data), lambda: _to_text(scan(_rows(data), where)))
    counts, *problems = [json.loads(line) for line in text.splitlines()]
    return Thoughts([Thought(**problem) for problem in problems], counts)


def needs_scan(data: Data) -> bool:
    """Whether `load_thoughts` must read all rows: minutes, and for hub data a download."""
    return not is_cached(_cache_name(data))


def scan(rows: Iterable[dict[str, Any]], where: str) -> Thoughts:
    """Collect the distinct math problems of `rows`, each with the answers of all its rows.

    Raises UserError if no math row opens with a human turn; `where` names the data.
    """
    problems: dict[str, Thought] = {}
    counts = {"rows": 0, "not_math": 0, "malformed": 0, "repeats": 0}
    for index, row in enumerate(rows):
        counts["rows"] += 1
        if row.get("domain") != "math" and row.get("source") != MATH_SOURCE:
            counts["not_math"] += 1
            continue
        text = _turn(row, 0, "human")
        if text is None:
            counts["malformed"] += 1
            continue
        counts["repeats"] += text in problems
        thought = problems.setdefault(text, Thought(index, text))
        answer = last_answer(_turn(row, 1, "gpt") or "")
        if answer is not None:
            thought.answers[answer] = thought.answers.get(answer, 0) + 1
    if not problems:
        raise _nothing_usable(where, counts)
    return Thoughts(list(problems.values()), counts)


def last_answer(text: str) -> str | None:
    """Extract a response's answer as the grader does; None if empty or too long to be graded right.

    Boxes within thoughts do not count. A response may have 100,000 characters, and `last_boxed`
    reads all of a text. It therefore gets the end of the response first, from CONTEXT_CHARS before
    the last box: boxes of one answer stand side by side. It reads the whole response only if that
    end has no complete box.
    """
    text = without_thoughts(text)
    if "box" not in text:
        return None
    end = text[max(0, text.rfind("box") - CONTEXT_CHARS) :]
    answer = last_boxed(end)
    if answer is None and end != text:
        answer = last_boxed(text)
    return answer if answer and len(answer) <= MAX_ANSWER_CHARS else None


def _rows(data: Data) -> Iterator[dict[str, Any]]:
    assert data.path is not None
    if Path(data.path).exists():
        return iterate_rows(Path(data.path), COLUMNS)
    return iterate_hub("data", data.path, data.revision, COLUMNS, "train")


def _turn(row: dict[str, Any], position: int, speaker: str) -> str | None:
    """The text of one turn if it is `speaker`'s; None otherwise, and for malformed rows."""
    turns = row.get("conversations")
    if not isinstance(turns, list) or len(turns) <= position:
        return None
    turn = turns[position]
    if not isinstance(turn, dict) or turn.get("from") != speaker:
        return None
    value = turn.get("value")
    is_text = isinstance(value, str) and value.strip() and not NO_TEXT.search(value)
    return value if is_text else None


def _nothing_usable(where: str, counts: dict[str, int]) -> UserError:
    """An error for data without usable rows: none is math, or all math rows are malformed."""
    if not counts["malformed"]:
        return UserError(
            f"{where}: none of {counts['rows']} rows is math: "
            f"expected domain 'math' or source {MATH_SOURCE!r}"
        )
    return UserError(
        f"{where}: none of {counts['malformed']} math rows has a problem: expected conversations "
        "[{from: human, value}, {from: gpt, value}]"
    )


def _cache_name(data: Data) -> str:
    # The name has the grader's version because the grader extracts the answers.
    return f"openthoughts-{data.revision}-{VERSION}-{GRADER_VERSION}.jsonl"


def _to_text(thoughts: Thoughts) -> str:
    """JSON Lines: the counts, then a line for each problem."""
    lines = [json.dumps(thoughts.counts) + "\n"]
    for thought in thoughts.problems:
        lines.append(json.dumps(asdict(thought)) + "\n")
    return "".join(lines)


# --- majorities: the gold of a problem is the answer that most of its solutions give ---


# Part of the cache's key: raise it with any change that can change a majority.
VOTE_VERSION = 1
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
    key = json.dumps(
        [VOTE_VERSION, GRADER_VERSION, [sorted(answers.items()) for answers in counted]]
    )
    name = f"majorities-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    rows = json.loads(cached(name, lambda: _as_json(_compute_majorities(counted))))
    return [Majority(answer, outcome) for answer, outcome in rows]


def _compute_majorities(counted: Sequence[Mapping[str, int]]) -> list[Majority]:
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


def _as_json(results: Sequence[Majority]) -> str:
    return json.dumps([[result.answer, result.outcome] for result in results]) + "\n"
