"""Texts of prompts and of single tokens."""

from __future__ import annotations

import pytest

from orchestrator.data.prompts import graded_text, prompt_text, token_texts
from orchestrator.models.embedded import make_tokenizer


@pytest.mark.parametrize("text", ["2+2=4", "é≤𝜋x", "", "ends in ≤"])
def test_token_texts_are_the_text_with_letters_whole(text: str) -> None:
    tokenizer = make_tokenizer("bytes")
    ids = tokenizer.encode(text, add_special_tokens=False)
    found = token_texts(ids, tokenizer)
    assert len(found) == len(ids) == len(text.encode())
    assert "".join(found) == prompt_text(ids, tokenizer) == text


def test_a_letter_that_is_cut_off_stands_at_the_last_token() -> None:
    tokenizer = make_tokenizer("bytes")
    ids = tokenizer.encode("a≤", add_special_tokens=False)[:-1]
    found = token_texts(ids, tokenizer)
    assert len(found) == 3
    assert found[:2] == ["a", ""]
    assert "".join(found) == tokenizer.decode(ids)


@pytest.mark.parametrize(("prompt", "tag"), [("é1+1=?<think>\n", "<think>"), ("1+1=?\n", "")])
def test_graded_text_begins_within_the_thought_of_its_prompt(prompt: str, tag: str) -> None:
    tokenizer = make_tokenizer("bytes")
    ids = tokenizer.encode(" " * 50 + prompt, add_special_tokens=False)
    assert graded_text(ids, "It is 2", tokenizer) == f"{tag}It is 2"
