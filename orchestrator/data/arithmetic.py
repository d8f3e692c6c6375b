"""The embedded world: sums of one-digit terms, solved step by step.

The answer to `6+9+1=?` is `6+9=15;15+1=16 \\boxed{16}`. The teacher learns from clean solutions,
the base student from a corrupted mixture. The student is then weak in the ways of base models: it
slips and carries the slip on, drifts off task, or answers without reasoning.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator

from orchestrator.config import Recipe
from orchestrator.data.problems import Problem
from orchestrator.grading.grader import Gold

WORLD_VERSION = 2
SHORT_TERMS = (2, 3)
LONG_TERMS = (4, 5)
BENCHMARK_PROBLEMS = 200
CHARACTERS = "0123456789+=?;\\{} \nabcdefghijklmnopqrstuvwxyz"
_OFF_TASK_TEXT = "the day was calm and people walk home with music while rain fell over green hills"
_OFF_TASK_WORDS = _OFF_TASK_TEXT.split()


def solution(terms: list[int]) -> str:
    """The reasoning and the boxed sum of `terms`."""
    return _reasoning(terms, slips=[0] * (len(terms) - 1))


def corrupted_solution(terms: list[int], recipe: Recipe, rng: random.Random) -> str:
    """One response of the base student's training mixture (shares in `recipe`)."""
    kind = rng.random()
    if kind < recipe.off_task:
        return " ".join(rng.choices(_OFF_TASK_WORDS, k=rng.randint(3, 6)))
    slips: list[int] = []
    for _ in terms[1:]:
        slip = rng.random() < recipe.wrong_step
        slips.append(rng.choice((-3, -2, -1, 1, 2, 3)) if slip else 0)
    if kind < recipe.off_task + recipe.no_reasoning:
        return f"\\boxed{{{max(0, sum(terms) + sum(slips))}}}"
    return _reasoning(terms, slips)


def _reasoning(terms: list[int], slips: list[int]) -> str:
    """A sum step by step; each slip changes one step, and later steps carry it on."""
    total = terms[0]
    steps: list[str] = []
    for term, slip in zip(terms[1:], slips, strict=True):
        result = max(0, total + term + slip)
        steps.append(f"{total}+{term}={result}")
        total = result
    return f"{';'.join(steps)} \\boxed{{{total}}}"


def question(terms: list[int]) -> str:
    """The text of a problem: `[6, 9, 1]` becomes `6+9+1=?`."""
    return "+".join(map(str, terms)) + "=?"


def draw_terms(rng: random.Random) -> list[int]:
    """Draw the 2 to 5 terms of a training problem that no benchmark holds out."""
    while True:
        terms = [rng.randint(1, 9) for _ in range(rng.randint(SHORT_TERMS[0], LONG_TERMS[1]))]
        if question(terms) not in _held_out():
            return terms


def training_problems(order_seed: int) -> Iterator[Problem]:
    """An endless, deterministic stream of problems that no benchmark contains."""
    rng = random.Random(f"arithmetic-train-{order_seed}")
    for index in itertools.count():
        terms = draw_terms(rng)
        yield Problem(f"arithmetic/train/{index}", question(terms), Gold(str(sum(terms))))


def benchmark_problems(lengths: tuple[int, int]) -> list[Problem]:
    """The held-out problems of sums with `lengths` terms, always the same."""
    name = "short" if lengths == SHORT_TERMS else "long"
    rng = random.Random(f"arithmetic-benchmark-{name}")
    totals: dict[str, int] = {}
    for length, count in zip(lengths, _held_out_counts(lengths), strict=True):
        while len(totals) < count:
            terms = [rng.randint(1, 9) for _ in range(length)]
            totals.setdefault(question(terms), sum(terms))
    problems: list[Problem] = []
    for number, (text, total) in enumerate(totals.items()):
        problems.append(Problem(f"arithmetic/{name}/{number}", text, Gold(str(total))))
    return problems


def _held_out_counts(lengths: tuple[int, int]) -> tuple[int, int]:
    """Number of problems of the shorter length, and of both lengths.

    Each length has half of the benchmark. The shorter length gives at most a quarter of its sums,
    so that training still covers it: 20 of the 81 sums of two terms are held out.
    """
    shortest = min(BENCHMARK_PROBLEMS // 2, 9 ** lengths[0] // 4)
    return shortest, BENCHMARK_PROBLEMS


@functools.cache
def _held_out() -> frozenset[str]:
    """Texts of all benchmark problems."""
    problems = benchmark_problems(SHORT_TERMS) + benchmark_problems(LONG_TERMS)
    return frozenset(problem.text for problem in problems)
