"""Statistics over rollouts, against loops over their pairs."""

from __future__ import annotations

import random

import pytest

from orchestrator.records.log import auroc


def auroc_of_pairs(values: list[float], rewards: list[float | None]) -> float | None:
    """Share of (correct, incorrect) pairs in the right order, ties half."""
    rated = list(zip(values, rewards, strict=True))
    pairs = [(a, b) for a, right in rated if right == 1 for b, wrong in rated if wrong == 0]
    wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs)
    return wins / len(pairs) if pairs else None


def test_auroc_counts_ordered_pairs() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        size = rng.randint(1, 40)
        levels = rng.choice([1, 2, 5, 1000])  # few levels: many ties
        values = [rng.randrange(levels) / 7 for _ in range(size)]
        rewards = [rng.choice([1.0, 0.0, None]) for _ in range(size)]
        expected = auroc_of_pairs(values, rewards)
        if expected is not None:
            expected = pytest.approx(expected, abs=1e-12)
        assert auroc(values, rewards) == expected


def test_auroc_edges() -> None:
    assert auroc([], []) is None
    assert auroc([0.3, 0.2], [1.0, 1.0]) is None
    assert auroc([0.3, 0.2], [1.0, None]) is None
    assert auroc([0.2, 0.2], [1.0, 0.0]) == 0.5
    assert auroc([9.0, 2.0, 1.0], [None, 1.0, 0.0]) == 1.0
    assert auroc([float("-inf"), 0.0], [0.0, 1.0]) == 1.0
