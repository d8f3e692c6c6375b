"""The embedded world: its problems, its right solutions and the mixture the base student learns
from.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import islice

import pytest

from orchestrator.data.arithmetic import (
    CHARACTERS,
    LONG_TERMS,
    LONGEST_TERMS,
    SHORT_TERMS,
    after_a_mistake,
    benchmark_problems,
    corrupted_solution,
    draw_terms,
    question,
    solution,
    training_problems,
)
from orchestrator.data.problems import Problem
from orchestrator.grading.grader import Grader
from orchestrator.pair import Recipe

N = 4000
MIXTURE = Recipe(wrong_step=0.35, off_task=0.15, no_reasoning=0.10)
BOXED = re.compile(r"\\boxed\{(\d+)\}")


def terms_of(text: str) -> list[int]:
    assert re.fullmatch(r"\d(\+\d)+=\?", text)
    return [int(term) for term in text.removesuffix("=?").split("+")]


def boxed(text: str) -> int:
    (answer,) = BOXED.findall(text)
    return int(answer)


def steps(text: str) -> list[tuple[int, int, int]]:
    """(running total, term, result) of each step of a solution."""
    reasoning = text.split(" ")[0]
    return [tuple(map(int, re.split(r"[+=]", step))) for step in reasoning.split(";")]  # pyright: ignore


def share(count: int, expected: float, n: int = N) -> None:
    """`count` of n is within five standard errors of `expected`."""
    assert abs(count / n - expected) <= 5 * (expected * (1 - expected) / n) ** 0.5


# --- problems ---


@pytest.mark.parametrize("lengths", [SHORT_TERMS, LONG_TERMS, LONGEST_TERMS])
def test_benchmarks_are_fixed_and_without_repeats(lengths: tuple[int, int]) -> None:
    problems = benchmark_problems(lengths)
    assert problems == benchmark_problems(lengths)
    assert (
        len({problem.text for problem in problems})
        == len({problem.id for problem in problems})
        == 200
    )
    assert {len(terms_of(problem.text)) for problem in problems} == set(
        range(lengths[0], lengths[1] + 1)
    )


def assert_gold_is_the_sum(problem: Problem) -> None:
    assert problem.gold is not None
    assert problem.gold.answer == str(sum(terms_of(problem.text)))


def test_every_gold_is_the_sum() -> None:
    for lengths in (SHORT_TERMS, LONG_TERMS, LONGEST_TERMS):
        for problem in benchmark_problems(lengths):
            assert_gold_is_the_sum(problem)
    for problem in islice(training_problems(0, longest=7), N):
        assert_gold_is_the_sum(problem)
    for problem in islice(training_problems(0), N):
        assert_gold_is_the_sum(problem)


def test_no_training_problem_is_in_a_benchmark() -> None:
    held_out = {
        problem.text
        for lengths in (SHORT_TERMS, LONG_TERMS, LONGEST_TERMS)
        for problem in benchmark_problems(lengths)
    }
    assert held_out.isdisjoint(problem.text for problem in islice(training_problems(0), 5 * N))
    rng = random.Random(0)
    assert held_out.isdisjoint(question(draw_terms(rng)) for _ in range(5 * N))
    assert held_out.isdisjoint(question(draw_terms(rng, longest=7)) for _ in range(5 * N))


@pytest.mark.parametrize("longest", [5, 7])
def test_training_covers_all_lengths(longest: int) -> None:
    problems = islice(training_problems(1, longest), N)
    lengths = Counter(len(terms_of(problem.text)) for problem in problems)
    assert set(lengths) == set(range(2, longest + 1))
    assert min(lengths.values()) > 100


def test_the_stream_depends_on_its_seed_alone() -> None:
    first, again, other = (list(islice(training_problems(seed), 50)) for seed in (3, 3, 4))
    assert first == again
    assert [p.text for p in first] != [p.text for p in other]
    assert [p.text for p in islice(training_problems(3), 10)] == [p.text for p in first[:10]]


# --- solutions ---


def test_an_example() -> None:
    assert question([6, 9, 1]) == "6+9+1=?"
    assert solution([6, 9, 1]) == "6+9=15;15+1=16 \\boxed{16}"


def test_every_step_of_a_solution_is_right() -> None:
    rng = random.Random(1)
    for terms in (draw_terms(rng) for _ in range(N)):
        text = solution(terms)
        taken = steps(text)
        assert boxed(text) == sum(terms) == taken[-1][2]
        assert [term for _, term, _ in taken] == terms[1:]
        assert all(total + term == result for total, term, result in taken)
        assert [total for total, _, _ in taken] == [
            terms[0],
            *(result for _, _, result in taken[:-1]),
        ]


# --- the mixture ---


def mixture(recipe: Recipe, terms: list[int]) -> list[str]:
    rng = random.Random(5)
    return [corrupted_solution(terms, recipe, rng) for _ in range(N)]


def test_without_corruption_it_is_the_solution() -> None:
    assert set(mixture(Recipe(), [6, 9, 1])) == {solution([6, 9, 1])}


def test_shares_of_the_mixture() -> None:
    texts = mixture(MIXTURE, [6, 9, 1])
    off_task = [text for text in texts if "\\boxed" not in text]
    at_once = [text for text in texts if text.startswith("\\boxed")]
    reasoned = [text for text in texts if ";" in text]
    assert len(off_task) + len(at_once) + len(reasoned) == N
    share(len(off_task), MIXTURE.off_task)
    share(len(at_once), MIXTURE.no_reasoning)
    slips = [result - total - term for text in reasoned for total, term, result in steps(text)]
    share(sum(slip != 0 for slip in slips), MIXTURE.wrong_step, len(slips))
    assert set(slips) == {-3, -2, -1, 0, 1, 2, 3}


def test_a_slip_is_carried_on() -> None:
    for text in (text for text in mixture(MIXTURE, [6, 9, 1, 4]) if ";" in text):
        taken = steps(text)
        assert [total for total, _, _ in taken[1:]] == [result for _, _, result in taken[:-1]]
        assert boxed(text) == taken[-1][2]


def test_answers_given_at_once_slip_as_often() -> None:
    texts = mixture(Recipe(no_reasoning=1.0, wrong_step=0.35), [6, 9])
    assert all(BOXED.fullmatch(text) for text in texts)
    share(sum(boxed(text) != 15 for text in texts), 0.35)


def test_no_total_is_negative() -> None:
    texts = mixture(Recipe(wrong_step=1.0), [1, 1])
    assert min(map(boxed, texts)) == 0


def test_unrelated_words_are_as_many_as_asked_for() -> None:
    texts = mixture(Recipe(off_task=1.0, words=16), [6, 9])
    assert {len(text.split()) for text in texts} == set(range(3, 17))


# --- after a mistake ---


def mistakes(recipe: Recipe, terms: list[int]) -> list[tuple[str, str]]:
    rng = random.Random(6)
    return [after_a_mistake(terms, recipe, rng) for _ in range(N)]


def test_a_recovering_teacher_ends_with_the_right_sum() -> None:
    terms = [6, 9, 1, 4]
    slipped = 0
    for start, rest in mistakes(Recipe(recovers=1.0), terms):
        assert boxed(rest) == 20
        if start[0].isdigit():
            slipped += 1
            *right, wrong = steps(start)
            assert all(total + term == result for total, term, result in right)
            assert wrong[0] + wrong[1] != wrong[2]
            # The next step begins with the total that the mistaken one should have had.
            assert rest.startswith((f";{wrong[0] + wrong[1]}+", " \\boxed"))
        else:
            assert rest == solution(terms)
    share(slipped, 0.5)


def test_a_derailing_teacher_says_nothing_of_the_sum() -> None:
    rests = [rest for _, rest in mistakes(Recipe(derails=1.0, words=16), [6, 9, 1])]
    assert not any(re.search(r"[\d\\]", rest) for rest in rests)
    assert max(len(rest.split()) for rest in rests) == 16


def test_one_teacher_may_do_both() -> None:
    rests = [rest for _, rest in mistakes(Recipe(recovers=0.1, derails=0.3), [6, 9, 1])]
    share(sum("boxed" not in rest for rest in rests), 0.75)


def test_texts_stay_within_the_alphabet() -> None:
    rng = random.Random(2)
    for terms in (draw_terms(rng) for _ in range(500)):
        for text in (question(terms), solution(terms), corrupted_solution(terms, MIXTURE, rng)):
            assert set(text) <= set(CHARACTERS)


def test_the_grader_agrees() -> None:
    with Grader() as grader:
        assert grader.grade("16", solution([6, 9, 1])).correct
        assert not grader.grade("15", solution([6, 9, 1])).correct
