"""Word problems of one step: their golds, their solutions, and what is held out."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import islice

from orchestrator.data.word_problems import benchmark_problems, draw, training_problems

WORDS = {"finds": "+", "together": "+", "gives": "-", "takes": "-", "bags": "*", "every day": "*"}


def solved(text: str) -> int:
    """The answer by the words of a problem and its two numbers."""
    signs = {sign for word, sign in WORDS.items() if word in text}
    assert len(signs) == 1, text
    a, b = map(int, re.findall(r"\d+", text))
    return {"+": a + b, "-": a - b, "*": a * b}[signs.pop()]


def test_golds_and_solutions_are_right() -> None:
    rng, signs = random.Random(0), Counter()
    for _ in range(600):
        story = draw(rng)
        step, stated = story.solution.split(". The answer is ")
        left, _, right = step.partition(" = ")
        assert left.split()[0::2] == re.findall(r"\d+", story.text) or "every day" in story.text
        signs[left.split()[1]] += 1
        assert solved(story.text) == story.answer == int(right)
        assert stated == f"\\boxed{{{story.answer}}}."
        assert 0 < story.answer <= 81
    assert set(signs) == {"+", "-", "*"}
    assert min(signs.values()) > 150


def test_the_benchmark_is_always_the_same_and_held_out() -> None:
    problems = benchmark_problems()
    assert problems == benchmark_problems()
    texts = {problem.text for problem in problems}
    assert len(texts) == len({problem.id for problem in problems}) == 200
    seen = list(islice(training_problems(0), 3000))
    assert not texts & {problem.text for problem in seen}
    assert seen[:5] == list(islice(training_problems(0), 5))
    assert seen[:5] != list(islice(training_problems(1), 5))
    for problem in (*problems, *seen[:100]):
        assert problem.gold is not None
        assert int(problem.gold.answer) == solved(problem.text)
