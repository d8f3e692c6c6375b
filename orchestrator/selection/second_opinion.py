"""Compares the grades of answers with those of a second grader, math-verify alone."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.grading.gold import Gold
from orchestrator.grading.grader import Grader
from orchestrator.grading.math_verify_alone import NAME

AUDIT = "audit.json"  # in an experiment's results folder
EXAMPLES = 5  # of a benchmark, the most frequent disagreements first


@dataclass(frozen=True)
class Example:
    """An answer on which the graders disagree; `count` responses gave it."""

    problem: str
    gold: str
    answer: str
    correct: bool  # by the sweep's grader
    count: int


@dataclass(frozen=True)
class Audited:
    """The disagreements on one benchmark, counted in responses with an answer.

    math-verify alone `refused` or `accepted` an answer on which the sweep's grader decided
    otherwise. `undecided` answers, without a verdict of math-verify in time, are no disagreements.
    """

    setup: str
    benchmark: str
    answers: int
    refused: int
    accepted: int
    undecided: int
    examples: list[Example] = field(default_factory=list)

    @property
    def rate(self) -> float | None:
        """Share of disagreements among the answers on which both graders gave a verdict."""
        decided = self.answers - self.undecided
        return (self.refused + self.accepted) / decided if decided else None


def compared(
    setup: str,
    benchmark: str,
    answers: Counter[tuple[str, str]],
    golds: dict[str, Gold],
    grader: Grader,
) -> Audited:
    """Grade each different answer twice; `answers` counts (problem, answer)."""
    refused = accepted = undecided = 0
    examples: list[Example] = []
    for (problem, answer), count in sorted(answers.items(), key=lambda item: (-item[1], item[0])):
        gold = golds[problem]
        ours = grader.grade_answer(gold, answer)
        theirs = grader.grade_answer(replace(gold, judge=NAME), answer)
        if theirs.timed_out:
            undecided += count
        elif ours.correct != theirs.correct:
            refused += count if ours.correct else 0
            accepted += count if theirs.correct else 0
            if len(examples) < EXAMPLES:
                examples.append(Example(problem, gold.answer, answer, ours.correct, count))
    return Audited(setup, benchmark, sum(answers.values()), refused, accepted, undecided, examples)


def read_audit(folder: Path) -> list[Audited]:
    """The last audit of an experiment by its results folder; empty where none was made."""
    path = folder / AUDIT
    if not path.is_file():
        return []
    audits: list[Audited] = []
    for row in json.loads(path.read_text(encoding="utf-8"))["audit"]:
        row.pop("rate")  # a property, which is written for readers of the file
        examples = [Example(**example) for example in row.pop("examples")]
        audits.append(Audited(**row, examples=examples))
    return audits
