"""Words of a search."""

from __future__ import annotations

import pytest

from orchestrator.view.searching import holds_words


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", True),
        ("trb k=12", True),
        ("K=12  TRB", True),
        ("trust", False),
        ("trb k=13", False),
    ],
)
def test_every_word_must_stand_in_the_text(words: str, found: bool) -> None:
    assert holds_words("TRB epsilon0=0.05 K=12", words) is found
