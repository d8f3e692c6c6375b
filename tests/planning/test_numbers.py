"""Numbers as people read them."""

from __future__ import annotations

import pytest

from orchestrator.planning.numbers import size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (812, "812 bytes"),
        (4_200_000, "4.20 MB"),
        (74_900, "74.9 kB"),
        (999_900_000, "1000 MB"),
        (12_345_678_901, "12.3 GB"),
    ],
)
def test_sizes_have_three_digits_and_no_exponent(size: int, text: str) -> None:
    assert size_text(size) == text
