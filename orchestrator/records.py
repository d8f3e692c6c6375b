"""What an evaluation keeps of one problem at one checkpoint: counts, never means."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

COUNTS = ("n", "correct", "truncated", "no_answer", "timed_out", "tokens")


@dataclass(frozen=True)
class ProblemRecord:
    """Counts over n generations; `answers` keeps every extracted answer, so that a corrected grader recounts."""

    problem: str
    n: int
    correct: int
    truncated: int
    no_answer: int
    timed_out: int
    tokens: int
    answers: dict[str, int]

    def to_row(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_row(row: dict[str, Any]) -> ProblemRecord:
        return ProblemRecord(**row)


def merge(old: list[ProblemRecord], new: list[ProblemRecord]) -> list[ProblemRecord]:
    """Counts of two disjoint sets of samples of the same problems."""
    return [_merge_one(a, b) for a, b in zip(old, new, strict=True)]


def _merge_one(a: ProblemRecord, b: ProblemRecord) -> ProblemRecord:
    assert a.problem == b.problem
    answers = Counter(a.answers) + Counter(b.answers)
    counts = {name: getattr(a, name) + getattr(b, name) for name in COUNTS}
    return ProblemRecord(problem=a.problem, answers=dict(sorted(answers.items())), **counts)
