"""The record of one problem at one checkpoint: counts, never means."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

COUNTS = ("n", "correct", "truncated", "no_answer", "timed_out", "tokens")
LATER_FIELDS = ("right_answers", "tokens_right")  # that records of older versions lack


@dataclass(frozen=True)
class ProblemRecord:
    """Counts over n generations; `answers` keeps every extracted answer for a corrected grader.

    `lengths` counts responses by length in tokens, in bins that grow by 2^(1/8): {lower edge:
    responses}. It is empty where lengths were not kept, as in records of older versions.
    `right_answers` are those of `answers` that the grader graded as right, with their counts.
    `tokens_right` counts the tokens of the right responses. Both are None where they were not kept.
    """

    problem: str
    n: int
    correct: int
    truncated: int
    no_answer: int
    timed_out: int
    tokens: int
    answers: dict[str, int]
    lengths: dict[int, int] = field(default_factory=dict)
    right_answers: dict[str, int] | None = None
    tokens_right: int | None = None

    def to_row(self) -> dict[str, Any]:
        row = asdict(self)
        row["lengths"] = {str(edge): count for edge, count in sorted(self.lengths.items())}
        # A record of an older version is written again without the fields that it lacks.
        for name in LATER_FIELDS:
            if row[name] is None:
                del row[name]
        return row

    @staticmethod
    def from_row(row: dict[str, Any]) -> ProblemRecord:
        lengths = {int(edge): count for edge, count in row.get("lengths", {}).items()}
        return ProblemRecord(**{**row, "lengths": lengths})


def merge(parts: Sequence[ProblemRecord]) -> ProblemRecord:
    """Counts of disjoint sets of samples of one problem.

    A field that one part lacks is missing from the whole, since a sum over the others misleads.
    """
    if len(parts) == 1:
        return parts[0]
    assert len({part.problem for part in parts}) == 1
    answers: Counter[str] = Counter()
    right_answers: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    tokens_right = 0
    for part in parts:
        answers.update(part.answers)
        right_answers.update(part.right_answers or {})
        counts.update({name: getattr(part, name) for name in COUNTS})
        tokens_right += part.tokens_right or 0
    lacks_right = any(part.right_answers is None for part in parts)
    lacks_tokens = any(part.tokens_right is None for part in parts)
    return ProblemRecord(
        problem=parts[0].problem,
        answers=dict(sorted(answers.items())),
        lengths=_merge_lengths(parts),
        right_answers=None if lacks_right else dict(sorted(right_answers.items())),
        tokens_right=None if lacks_tokens else tokens_right,
        **counts,
    )


def length_histogram(lengths: Iterable[int]) -> dict[int, int]:
    """{lower edge: how many} of response lengths in tokens, by edge. Lengths up to 16 are exact."""
    return dict(sorted(Counter(_lower_edge(length) for length in lengths).items()))


def _merge_lengths(parts: Sequence[ProblemRecord]) -> dict[int, int]:
    """The histogram of all parts; empty if one part lacks its own."""
    total: Counter[int] = Counter()
    for part in parts:
        if sum(part.lengths.values()) != part.n:
            return {}
        total.update(part.lengths)
    return dict(sorted(total.items()))


def _lower_edge(length: int) -> int:
    """The least whole length in the bin of `length`; bins start at 2^(j/8), exact: 2^j ≤ length^8."""
    if length < 1:
        return 0
    j = (length**8).bit_length() - 1
    # ⌈2^(j/8)⌉ in whole numbers: the eighth root is a square root three times over.
    return math.isqrt(math.isqrt(math.isqrt(2**j - 1))) + 1
