"""A problem with what is right: the noun that training data and benchmarks share."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.grading.grader import Gold


@dataclass(frozen=True)
class Problem:
    """`gold` is None where no answer is known: such a problem has no reward (never a reward of 0)."""

    id: str
    text: str
    gold: Gold | None
