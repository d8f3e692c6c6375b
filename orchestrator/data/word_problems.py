"""Word problems of one step with small numbers, generated: for real models on a laptop.

"Mia has 3 coins and finds 4 more. How many coins does Mia have now?" has the solution
`3 + 4 = 7. The answer is \\boxed{7}.` A language model of a hundred million parameters can learn
to solve such problems, and hardly any others.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.data.problems import Problem
from orchestrator.grading.gold import Gold

WORLD_VERSION = 1
BENCHMARK_PROBLEMS = 200
_NAMES = ("Anna", "Ben", "Emma", "Jack", "Lucy", "Max", "Mia", "Sam", "Tom", "Zoe")
_THINGS = ("apples", "balls", "books", "cards", "coins", "cookies", "eggs", "pens", "shells")
_STORIES = (
    ("+", "{name} has {a} {things} and finds {b} more. How many {things} does {name} have now?"),
    ("+", "{name} has {a} {things} and {other} has {b}. How many {things} do they have together?"),
    ("-", "{name} has {a} {things} and gives {b} to {other}. How many {things} are left?"),
    ("-", "There are {a} {things} in a box. {name} takes {b} of them. How many are left?"),
    ("*", "{name} has {a} bags with {b} {things} in each. How many {things} does {name} have?"),
    ("*", "{name} buys {b} {things} every day. How many {things} does {name} buy in {a} days?"),
)


@dataclass(frozen=True)
class Story:
    """One problem: its text, its worked solution and the answer."""

    text: str
    solution: str
    answer: int


def draw(rng: random.Random) -> Story:
    """Draw a problem. Numbers have one digit, but for those from which another is taken away."""
    sign, text = rng.choice(_STORIES)
    name, other = rng.sample(_NAMES, 2)
    things = rng.choice(_THINGS)
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    match sign:
        case "+":
            answer = a + b
        case "-":
            answer, a = a, a + b
        case _:
            answer = a * b
    return Story(
        text.format(name=name, other=other, things=things, a=a, b=b),
        f"{a} {sign} {b} = {answer}. The answer is \\boxed{{{answer}}}.",
        answer,
    )


def draw_training(rng: random.Random) -> Story:
    """Draw a problem that the benchmark does not contain."""
    while True:
        story = draw(rng)
        if story.text not in _held_out():
            return story


def training_problems(order: int | str) -> Iterator[Problem]:
    """An endless, deterministic stream of problems that the benchmark does not contain."""
    rng = random.Random(f"word-problems-train-{order}")
    for index in itertools.count():
        story = draw_training(rng)
        yield Problem(f"word-problems/train/{index}", story.text, Gold(str(story.answer)))


def benchmark_problems() -> list[Problem]:
    """The held-out problems, always the same."""
    rng = random.Random("word-problems-benchmark")
    stories: dict[str, Story] = {}
    while len(stories) < BENCHMARK_PROBLEMS:
        story = draw(rng)
        stories.setdefault(story.text, story)
    problems: list[Problem] = []
    for number, story in enumerate(stories.values()):
        problems.append(
            Problem(f"word-problems/test/{number}", story.text, Gold(str(story.answer)))
        )
    return problems


@functools.cache
def _held_out() -> frozenset[str]:
    """Texts of all benchmark problems."""
    return frozenset(problem.text for problem in benchmark_problems())
