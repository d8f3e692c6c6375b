"""pass@k and maj@k against every choice of k samples, one by one."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from orchestrator.selection.scores import (
    PASS_AT_1,
    Metric,
    Tally,
    Votes,
    majority_share,
    pass_share,
    votes_of,
)
from tests.fake_runs import record

# Samples of problems: R is right, digits are wrong answers, - is none.
PROBLEMS = (
    "R",
    "-",
    "RRRRRR",
    "111111",
    "------",
    "RR1122",
    "R11---",
    "R12345",
    "RR11-2",
    "RRR111222",
    "RR1112-3-",
    "RRR1122-4",
    "1122334-R",
    "R--------",
)


def votes(samples: str) -> Votes:
    counts = Counter(samples)
    wrong = sorted(count for answer, count in counts.items() if answer not in "R-")
    return Votes(counts["R"], tuple(wrong), counts["-"])


def verdict(chosen: tuple[str, ...]) -> Fraction:
    """What a vote of these samples is worth, by counting its most frequent answers."""
    counts = Counter(answer for answer in chosen if answer != "-")
    most = max(counts.values(), default=0)
    ahead = [answer for answer, count in counts.items() if count == most]
    return Fraction(1, len(ahead)) if "R" in ahead else Fraction(0)


@pytest.mark.parametrize("samples", PROBLEMS)
def test_maj_at_k_is_the_mean_vote_over_all_subsets(samples: str) -> None:
    for k in range(1, len(samples) + 1):
        subsets = list(itertools.combinations(samples, k))
        by_hand = sum(map(verdict, subsets)) / Fraction(len(subsets))
        assert majority_share(votes(samples), k) == by_hand


@pytest.mark.parametrize("samples", PROBLEMS)
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(samples: str) -> None:
    for k in range(1, len(samples) + 1):
        subsets = list(itertools.combinations(samples, k))
        with_right = sum("R" in chosen for chosen in subsets)
        assert pass_share(len(samples), samples.count("R"), k) == Fraction(with_right, len(subsets))


def test_a_vote_of_one_is_pass_at_1() -> None:
    for samples in PROBLEMS:
        assert majority_share(votes(samples), 1) == Fraction(samples.count("R"), len(samples))


def test_many_samples_stay_exact() -> None:
    # Two answers of 100 samples each: by symmetry each wins half of the votes, ties counting half.
    assert majority_share(Votes(100, (100,), 0), 64) == Fraction(1, 2)
    assert majority_share(Votes(60, (1,) * 30 + (2,) * 15, 20), 101) == 1


def test_spellings_of_an_answer_vote_together() -> None:
    found = record(3, n=9)
    answers = {r"\frac12": 2, "0.5": 1, r"\dfrac{1}{3}": 2, r"\frac{1}{3}": 1, "7": 1}
    found = replace(found, answers=answers, no_answer=2)
    assert votes_of(found) is None
    right = {r"\frac12": 2, "0.5": 1}
    assert votes_of(replace(found, right_answers=right)) == Votes(3, (1, 3), 2)


def test_an_answer_that_timed_out_once_votes_for_itself() -> None:
    found = replace(record(1, n=3), answers={"8": 3}, right_answers={"8": 1})
    assert votes_of(found) == Votes(1, (2,), 0)


def test_scores_of_a_benchmark_are_means_over_its_problems() -> None:
    samples = ("RR11-2", "R12345", "RRRRRR", "111111")
    correct = np.array([problem.count("R") for problem in samples])
    tally = Tally(np.full(4, 6), correct, votes=tuple(votes(problem) for problem in samples))
    for k in range(1, 7):
        majority = [majority_share(each, k) for each in tally.votes]
        assert tally.score(Metric("maj", k)) == sum(majority) / 4
        assert tally.shares(Metric("maj", k)) == pytest.approx(list(map(float, majority)))
        passed = [pass_share(6, problem.count("R"), k) for problem in samples]
        assert tally.score(Metric("pass", k)) == sum(passed) / 4
        assert tally.shares(Metric("pass", k)) == pytest.approx(list(map(float, passed)))
    assert tally.score(PASS_AT_1) == tally.pass_at_1
