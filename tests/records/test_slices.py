"""Slices against a plain grid of problems by samples."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from orchestrator.records.slices import Slice, complete_samples, disjoint, missing, parse


def grid(slices: list[Slice], problems: int, samples: int) -> np.ndarray:
    """How many of the slices hold each (problem, sample)."""
    counts = np.zeros((problems, samples), dtype=int)
    for each in slices:
        counts[each.problem : each.problem_end, each.sample : each.sample_end] += 1
    return counts


def some(rng: random.Random, problems: int, samples: int) -> Slice:
    a, b = sorted(rng.sample(range(problems + 1), 2))
    c, d = sorted(rng.sample(range(samples + 1), 2))
    return Slice(c, d, a, b, problems)


def test_a_name_is_read_back() -> None:
    part = Slice(0, 4, 0, 250, 500)
    assert part.name == "problems_0-250_of_500.samples_0-4.jsonl"
    assert parse(part.name) == part
    assert (part.width, part.samples, part.responses) == (250, 4, 1000)


@pytest.mark.parametrize(
    "name",
    [
        "problems_0-250_of_500.samples_0-4.jsonl.tmp",
        ".problems_0-250_of_500.samples_0-4.jsonl",
        "problems_250-0_of_500.samples_0-4.jsonl",
        "problems_0-501_of_500.samples_0-4.jsonl",
        "problems_0-250_of_500.samples_4-4.jsonl",
        "error.txt",
    ],
)
def test_other_names_are_no_slices(name: str) -> None:
    assert parse(name) is None


def test_what_is_missing_fills_the_grid_and_nothing_twice() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        problems, samples = rng.randint(1, 12), rng.randint(1, 9)
        there = disjoint(some(rng, problems, samples + 3) for _ in range(rng.randint(0, 5)))
        cuts, most = rng.sample(range(samples + 2), 2), rng.randint(1, 40)
        lacking = missing(there, problems, samples, cuts, most)
        counts = grid([*there, *lacking], problems, samples + 3)
        assert (counts <= 1).all()
        assert (counts[:, :samples] == 1).all()
        for part, cut in itertools.product(lacking, cuts):
            assert not part.sample < cut < part.sample_end
        assert all(part.responses <= max(most, part.samples) for part in lacking)


def test_any_order_of_work_makes_the_same_slices() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        problems, samples, cuts = rng.randint(1, 30), rng.randint(1, 9), [2, 4]
        whole = missing([], problems, samples, cuts, 7)
        done = rng.sample(whole, rng.randint(0, len(whole)))
        again = [*done, *missing(done, problems, samples, cuts, 7)]
        assert sorted(again, key=str) == sorted(whole, key=str)


def test_parts_are_about_equal() -> None:
    widths = [part.width for part in missing([], 500, 64, [], 2000)]
    assert sum(widths) == 500
    assert max(widths) * 64 <= 2000
    assert max(widths) - min(widths) <= max(widths) / 2


def test_complete_samples_are_those_that_all_problems_have() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        problems, samples = rng.randint(1, 4), 6
        slices = disjoint(some(rng, problems, samples) for _ in range(rng.randint(0, 12)))
        full = grid(slices, problems, samples).all(axis=0)
        prefix = samples if full.all() else int(full.argmin())
        inner = {n for part in slices for n in range(part.sample + 1, part.sample_end)}
        expected = [n for n in range(1, prefix + 1) if n not in inner and _is_edge(n, slices)]
        assert complete_samples(slices) == expected


def _is_edge(n: int, slices: list[Slice]) -> bool:
    return any(n in (part.sample, part.sample_end) for part in slices)


def test_of_slices_that_overlap_one_counts() -> None:
    small, large, other = Slice(0, 2, 0, 5, 5), Slice(0, 4, 0, 5, 5), Slice(2, 4, 0, 5, 5)
    assert disjoint([other, small, large]) == [large]
    assert disjoint([other, small]) == [small, other]
