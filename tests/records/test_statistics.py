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


@pytest.mark.parametrize("seed", range(30))
def test_auroc_counts_ordered_pairs(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randint(1, 40)
    levels = rng.choice([1, 2, 5, 1000])  # few levels: many ties
    values = [rng.randrange(levels) / 7 for _ in range(size)]
    rewards = [rng.choice([1.0, 0.0, None]) for _ in range(size)]
    expected = auroc_of_pairs(values, rewards)
    assert auroc(values, rewards) == (
        None if expected is None else pytest.approx(expected, abs=1e-12)
    )


@pytest.mark.parametrize(
    ("values", "rewards", "expected"),
    [
        ([], [], None),
        ([0.3], [1.0], None),
        ([0.3, 0.2], [1.0, 1.0], None),
        ([0.3, 0.2], [0.0, 0.0], None),
        ([0.3, 0.2], [1.0, None], None),
        ([0.3, 0.2], [None, None], None),
        ([0.3, 0.2], [1.0, 0.0], 1.0),
        ([0.2, 0.3], [1.0, 0.0], 0.0),
        ([0.2, 0.2], [1.0, 0.0], 0.5),
        ([0.2, 0.2, 0.2, 0.2], [1.0, 0.0, 1.0, 0.0], 0.5),
        ([2.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0], 0.875),
        ([9.0, 2.0, 1.0], [None, 1.0, 0.0], 1.0),
        ([float("-inf"), 0.0], [0.0, 1.0], 1.0),
    ],
)
def test_auroc_edges(
    values: list[float], rewards: list[float | None], expected: float | None
) -> None:
    assert auroc(values, rewards) == expected
