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

from orchestrator.data.problems import Problem
from orchestrator.grading.gold import Gold
from orchestrator.pair import Recipe

WORLD_VERSION = 2
SHORT_TERMS = (2, 3)
LONG_TERMS = (4, 5)
LONGEST_TERMS = (6, 7)
BENCHMARK_NAMES = {SHORT_TERMS: "short", LONG_TERMS: "long", LONGEST_TERMS: "longest"}
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
        return _off_task(recipe, rng)
    slips: list[int] = []
    for _ in terms[1:]:
        slip = rng.random() < recipe.wrong_step
        slips.append(rng.choice((-3, -2, -1, 1, 2, 3)) if slip else 0)
    if kind < recipe.off_task + recipe.no_reasoning:
        return f"\\boxed{{{max(0, sum(terms) + sum(slips))}}}"
    return _reasoning(terms, slips)


def after_a_mistake(terms: list[int], recipe: Recipe, rng: random.Random) -> tuple[str, str]:
    """A response that begins with a mistake: its start, and the rest that the teacher learns.

    The mistake is a slip in one step, or unrelated words. A recovering teacher goes on from the
    right total, or begins the reasoning; a derailing one goes on with unrelated words.
    """
    derails = rng.random() * (recipe.recovers + recipe.derails) < recipe.derails
    if rng.random() < 0.5:
        start = " ".join(rng.choices(_OFF_TASK_WORDS, k=rng.randint(1, 3))) + " "
        return start, _off_task(recipe, rng) if derails else solution(terms)
    wrong_step = rng.randrange(1, len(terms))
    right = sum(terms[: wrong_step + 1])
    slip = rng.choice((-3, -2, -1, 1, 2, 3))
    start = _steps(terms[: wrong_step + 1], [0] * (wrong_step - 1) + [slip])
    if derails:
        return start, " " + _off_task(recipe, rng)
    rest = [right, *terms[wrong_step + 1 :]]
    return start, f";{solution(rest)}" if len(rest) > 1 else f" \\boxed{{{right}}}"


def _off_task(recipe: Recipe, rng: random.Random) -> str:
    return " ".join(rng.choices(_OFF_TASK_WORDS, k=rng.randint(3, recipe.words)))


def _reasoning(terms: list[int], slips: list[int]) -> str:
    """A sum step by step, and the last total as its answer."""
    steps = _steps(terms, slips)
    return f"{steps} \\boxed{{{steps.rpartition('=')[2]}}}"


def _steps(terms: list[int], slips: list[int]) -> str:
    """The steps of a sum; each slip changes one step, and later steps carry it on."""
    total = terms[0]
    steps: list[str] = []
    for term, slip in zip(terms[1:], slips, strict=True):
        result = max(0, total + term + slip)
        steps.append(f"{total}+{term}={result}")
        total = result
    return ";".join(steps)


def question(terms: list[int]) -> str:
    """The text of a problem: `[6, 9, 1]` becomes `6+9+1=?`."""
    return "+".join(map(str, terms)) + "=?"


def draw_terms(rng: random.Random, longest: int = LONG_TERMS[1]) -> list[int]:
    """Draw the 2 to `longest` terms of a training problem that no benchmark holds out."""
    while True:
        terms = [rng.randint(1, 9) for _ in range(rng.randint(SHORT_TERMS[0], longest))]
        if question(terms) not in _held_out():
            return terms


def training_problems(order: int | str, longest: int = LONG_TERMS[1]) -> Iterator[Problem]:
    """An endless, deterministic stream of sums of 2 to `longest` terms that no benchmark contains."""
    rng = random.Random(f"arithmetic-train-{order}")
    for index in itertools.count():
        terms = draw_terms(rng, longest)
        yield Problem(f"arithmetic/train/{index}", question(terms), Gold(str(sum(terms))))


def benchmark_problems(lengths: tuple[int, int]) -> list[Problem]:
    """The held-out problems of sums with `lengths` terms, always the same."""
    name = BENCHMARK_NAMES[lengths]
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
    texts: set[str] = set()
    for lengths in BENCHMARK_NAMES:
        for problem in benchmark_problems(lengths):
            texts.add(problem.text)
    return frozenset(texts)
