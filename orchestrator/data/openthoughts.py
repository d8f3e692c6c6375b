"""OpenThoughts3-1.2M: training prompts of the paper, from the hub or from local parquet or JSON Lines files.

A row holds `domain`, `source` and `conversations`, the turns `{"from": "human", "value": …}` and `{"from": "gpt",
"value": …}`. The human turn of a math row is the bare problem, and most problems stand in many rows, each with an
answer of its own. There is no gold column, so the gold is what the rows of a problem agree on (`data.majority`). All
rows are read once; what is needed of them is kept in the user's cache folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.config import Data
from orchestrator.data.cache import cached, is_cached
from orchestrator.data.files import iterate_rows, verify_sha256
from orchestrator.data.hub import check_hub_id, iterate_hub
from orchestrator.errors import UserError
from orchestrator.grading.grader import GRADER_VERSION, MAX_ANSWER_CHARS, last_boxed

MATH_SOURCE = "ai2-adapt-dev/openmath-2-math"
COLUMNS = ("domain", "source", "conversations")
# Part of the cache's key: raise it with any change that can change what is kept of the rows.
VERSION = 1
# How much text before the last box is read with it.
CONTEXT_CHARS = 4096


@dataclass(frozen=True)
class Thought:
    """One distinct problem: its first row, and the boxed answers of all its rows with their counts."""

    row: int
    text: str
    answers: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Thoughts:
    """The distinct math problems in row order, and how many rows there were and fell away."""

    problems: list[Thought]
    counts: dict[str, int]  # rows, not_math, malformed, repeats


def load_thoughts(data: Data) -> Thoughts:
    """Everything training needs of the rows. UserError if the data cannot be had or are not the declared ones."""
    if not data.path:
        raise UserError("data.path: not set — a hub id such as open-thoughts/OpenThoughts3-1.2M, or a local file")
    if Path(data.path).exists():
        verify_sha256(Path(data.path), data.revision)
    else:
        check_hub_id("data", data.path, data.revision)
    where = data.path
    text = cached(_cache_name(data), lambda: _to_text(scan(_rows(data), where)))
    counts, *problems = [json.loads(line) for line in text.splitlines()]
    return Thoughts([Thought(**problem) for problem in problems], counts)


def needs_scan(data: Data) -> bool:
    """Whether `load_thoughts` would have to read all rows, which takes minutes and for hub data a download."""
    return not is_cached(_cache_name(data))


def scan(rows: Iterable[dict[str, Any]], where: str) -> Thoughts:
    """Distinct math problems of `rows`, each with the answers of all its rows.

    Raises UserError, which names the data as `where`, if no math row opens with a human turn.
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
    """What the grader extracts from a response; None if that could never be graded right (empty or over-long).

    A response may have 100,000 characters, and `last_boxed` reads all of a text. It is first given the end of the
    response, from a little before the last box: boxes that make one answer stand side by side, so nothing is lost. Only
    where that end has no complete box is the whole response read.
    """
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
    """The text of one turn of the row's conversation if `speaker` has it, else None, also where a row is malformed."""
    turns = row.get("conversations")
    if not isinstance(turns, list) or len(turns) <= position:
        return None
    turn = turns[position]
    if not isinstance(turn, dict) or turn.get("from") != speaker:
        return None
    value = turn.get("value")
    return value if isinstance(value, str) and value.strip() else None


def _nothing_usable(where: str, counts: dict[str, int]) -> UserError:
    """Why no row could be used: none is math, or those that are have another layout."""
    if not counts["malformed"]:
        return UserError(f"{where}: none of {counts['rows']} rows is math — domain 'math' or source {MATH_SOURCE!r}")
    return UserError(
        f"{where}: none of {counts['malformed']} math rows has a problem — conversations [{{from: human, value}}, "
        "{from: gpt, value}]"
    )


def _cache_name(data: Data) -> str:
    # The grader's version is in it, for the grader extracts the answers.
    return f"openthoughts-{data.revision}-{VERSION}-{GRADER_VERSION}.jsonl"


def _to_text(thoughts: Thoughts) -> str:
    """JSON Lines: the counts, then a line for each problem."""
    lines = [thoughts.counts, *(asdict(thought) for thought in thoughts.problems)]
    return "".join(json.dumps(line) + "\n" for line in lines)
