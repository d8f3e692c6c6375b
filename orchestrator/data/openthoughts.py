"""OpenThoughts3-1.2M, the training prompts of the paper, from the hub or from local files.

A row holds `domain`, `source` and `conversations`, the turns `{"from": "human", "value": …}` and
`{"from": "gpt", "value": …}`. The human turn of a math row is the bare problem. Most problems have
many rows, each with its own answer. Without a gold column, the gold is the majority answer of a
problem's rows (`data.majority`). All rows are read once; the extract is kept in the user's cache.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.config import Data
from orchestrator.data.cache import cached, is_cached
from orchestrator.data.files import NO_TEXT, iterate_rows, verify_sha256
from orchestrator.data.hub import check_hub_id, iterate_hub
from orchestrator.errors import UserError
from orchestrator.grading.boxes import MAX_ANSWER_CHARS, last_boxed, without_thoughts
from orchestrator.grading.grader import GRADER_VERSION

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
