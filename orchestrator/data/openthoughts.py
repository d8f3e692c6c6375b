"""OpenThoughts3-1.2M: training prompts of the paper, from the hub or from local parquet or JSON Lines files.

Rows hold `difficulty`, `source`, `domain` and `conversations` ({from, value} turns); a math row's human turn is the
bare problem, and most problems stand in many rows, each with an answer of its own. There is no gold column: what
counts is what the rows of a problem agree on (`majority`). The rows are read once; what is needed of them is kept
in the user's cache folder.
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
# Text before the last box that is read with it.
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
    return _from_text(cached(_cache_name(data), lambda: _to_text(scan(_rows(data), data.path or ""))))


def needs_scan(data: Data) -> bool:
    """Whether `load_thoughts` would have to read all rows: minutes, and for hub data a download."""
    return not is_cached(_cache_name(data))


def scan(rows: Iterable[dict[str, Any]], where: str) -> Thoughts:
    """Distinct math problems of `rows`. UserError if no math row opens with a human turn."""
    problems: dict[str, Thought] = {}
    counts = {"rows": 0, "not_math": 0, "malformed": 0, "repeats": 0}
    for index, row in enumerate(rows):
        counts["rows"] += 1
        if row.get("domain") != "math" and row.get("source") != MATH_SOURCE:
            counts["not_math"] += 1
            continue
        text = _said(row, 0, "human")
        if text is None:
            counts["malformed"] += 1
            continue
        counts["repeats"] += text in problems
        thought = problems.setdefault(text, Thought(index, text))
        answer = last_answer(_said(row, 1, "gpt") or "")
        if answer is not None:
            thought.answers[answer] = thought.answers.get(answer, 0) + 1
    if not problems:
        raise UserError(f"{where}: {_nothing_usable(counts)}")
    return Thoughts(list(problems.values()), counts)


def last_answer(text: str) -> str | None:
    """What the grader extracts from a response, None if that could never be graded right (empty, over-long).

    Responses are long and `last_boxed` reads all of a text, so it is first given the text around the last box and what
    follows: boxes that make one answer stand side by side.
    """
    end = text[max(0, text.rfind("box") - CONTEXT_CHARS) :] if "box" in text else ""
    answer = last_boxed(end)
    if answer is None and end != text and end:
        answer = last_boxed(text)
    return answer if answer and len(answer) <= MAX_ANSWER_CHARS else None


def _rows(data: Data) -> Iterator[dict[str, Any]]:
    assert data.path is not None
    if Path(data.path).exists():
        return iterate_rows(Path(data.path), COLUMNS)
    return iterate_hub("data", data.path, data.revision, COLUMNS, "train")


def _said(row: dict[str, Any], position: int, speaker: str) -> str | None:
    """What `speaker` says in a turn of the row; None if there is no such turn."""
    turns = row.get("conversations")
    turn = turns[position] if isinstance(turns, list) and len(turns) > position else None
    value = turn.get("value") if isinstance(turn, dict) and turn.get("from") == speaker else None
    return value if isinstance(value, str) and value.strip() else None


def _nothing_usable(counts: dict[str, int]) -> str:
    if not counts["malformed"]:
        return f"none of {counts['rows']} rows is math — domain 'math' or source {MATH_SOURCE!r}"
    return (
        f"none of {counts['malformed']} math rows has a problem — conversations [{{from: human, value}}, "
        "{from: gpt, value}]"
    )


def _cache_name(data: Data) -> str:
    # The extraction of answers belongs to the grader.
    return f"openthoughts-{data.revision}-{VERSION}-{GRADER_VERSION}.jsonl"


def _to_text(thoughts: Thoughts) -> str:
    lines = [thoughts.counts, *(asdict(thought) for thought in thoughts.problems)]
    return "".join(json.dumps(line) + "\n" for line in lines)


def _from_text(text: str) -> Thoughts:
    counts, *problems = [json.loads(line) for line in text.splitlines()]
    return Thoughts([Thought(**problem) for problem in problems], counts)
