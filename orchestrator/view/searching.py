"""The search of all tabs: a row or line must hold every word, in any case."""

from __future__ import annotations


def holds_words(text: str, words: str) -> bool:
    """Whether `text` holds all of the `words`, which blanks part; parts of words count."""
    folded = text.casefold()
    return all(word in folded for word in words.casefold().split())
