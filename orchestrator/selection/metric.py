"""Scores that k of the n samples of a problem would have: pass@k and maj@k, exact from counts.

Both are means over all choices of k of the n samples, so they are unbiased for every k up to n.
pass@k asks for one right sample (Chen et al. 2021, "Evaluating Large Language Models Trained on
Code", equation 1). maj@k lets the k samples vote (Wang et al. 2022, "Self-Consistency Improves
Chain of Thought Reasoning in Language Models"):

- All right answers are one candidate, since the grader takes each of them for the gold. Wrong
  answers vote together where `grading.spelling` gives them one text; equal values in other
  notations do not, so that maj@k may be somewhat too high.
- A sample without an answer has no vote. Without any vote the problem is wrong.
- Where m answers tie for the most votes and one of them is right, the problem counts 1/m.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import comb
from typing import Literal

from orchestrator.grading.spelling import spelled
from orchestrator.records.problem_record import ProblemRecord


@dataclass(frozen=True)
class Metric:
    """How the samples of a problem are scored: `pass@8` or `maj@8`."""

    kind: Literal["pass", "maj"]
    k: int

    def __str__(self) -> str:
        return f"{self.kind}@{self.k}"

    @property
    def column(self) -> str:
        """The name of its column in files, such as pass_at_8."""
        return f"{self.kind}_at_{self.k}"


PASS_AT_1 = Metric("pass", 1)  # which selects checkpoints


@dataclass(frozen=True)
class Votes:
    """Samples of one problem: with the `right` answer, with each `wrong` one, and with none."""

    right: int
    wrong: tuple[int, ...]  # in ascending order
    blank: int

    @property
    def samples(self) -> int:
        return self.right + sum(self.wrong) + self.blank


def votes_of(record: ProblemRecord) -> Votes | None:
    """The votes in a record; None where the evaluator did not note which answers were right."""
    if record.right_answers is None:
        return None
    wrong = dict[str, int]()
    for answer, count in record.answers.items():
        # One text can be right in some samples and wrong in others, when the grader ran out of time.
        wrong_count = count - record.right_answers.get(answer, 0)
        if wrong_count > 0:
            wrong[answer] = wrong_count
    counts = list(wrong.values())
    if len(counts) > 1:
        by_spelling: Counter[str] = Counter()
        for answer, count in wrong.items():
            by_spelling[_spelled(answer)] += count
        counts = sorted(by_spelling.values())
    return Votes(record.correct, tuple(counts), record.no_answer)


_spelled = lru_cache(maxsize=100_000)(spelled)  # checkpoints repeat each other's answers


@lru_cache(maxsize=100_000)  # problems with equal counts abound: all right, all wrong
def pass_share(n: int, correct: int, k: int) -> Fraction:
    """The share of the choices of k samples out of n in which one is right."""
    return 1 - Fraction(comb(n - correct, k), comb(n, k))


@lru_cache(maxsize=100_000)
def majority_share(votes: Votes, k: int) -> Fraction:
    """The share of the choices of k samples whose vote is right, a tie of m answers counting 1/m."""
    won = Fraction(0)
    for most in range(1, min(votes.right, k) + 1):  # the votes for the right answer
        # Wrong answers of fewer samples than that cannot tie: any of their samples may be chosen,
        # like those without an answer.
        rivals = [count for count in votes.wrong if count >= most]
        harmless = votes.samples - votes.right - sum(rivals)
        for (chosen, ties), ways in _ways(rivals, most, k - most).items():
            rest = comb(harmless, k - most - chosen)
            won += Fraction(comb(votes.right, most) * ways * rest, 1 + ties)
    return won / comb(votes.samples, k)


def _ways(rivals: list[int], most: int, limit: int) -> dict[tuple[int, int], int]:
    """Count the choices of samples of the rivals, with at most `most` from each and `limit` in all.

    The key is (samples chosen, rivals that tie with `most` of them). Adds one rival after another:
    each choice so far is extended by 0 to `most` of the rival's samples.
    """
    ways = {(0, 0): 1}
    for count in rivals:
        longer: Counter[tuple[int, int]] = Counter()
        for (chosen, ties), number in ways.items():
            for votes in range(min(most, limit - chosen) + 1):
                longer[chosen + votes, ties + (votes == most)] += number * comb(count, votes)
        ways = dict(longer)
    return ways
