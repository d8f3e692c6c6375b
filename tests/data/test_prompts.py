"""Prompts as token ids, and texts of prompts and of single tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from orchestrator.config import PromptTemplate
from orchestrator.data.prompts import (
    check_rendering,
    graded_text,
    own_system_message,
    prompt_text,
    render,
    response_text,
    token_texts,
)
from orchestrator.errors import UserError
from orchestrator.models.recipes import make_tokenizer
from tests.data.tokenizers import CLOSED, OPENED, byte_level, sentencepiece

PLAIN, CHAT = PromptTemplate(kind="plain"), PromptTemplate(kind="chat")
TOLD = PromptTemplate(kind="chat", system="Be brief.")
KINDS: list[Callable[..., PreTrainedTokenizerFast]] = [byte_level, sentencepiece]

TURNS = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}<end>{% endfor %}"
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}" + TURNS
)
OWN_SYSTEM = "{% if messages[0]['role'] != 'system' %}<system>You are kind.<end>{% endif %}" + TURNS
USER_ALONE = "{% for m in messages %}{% if m['role'] == 'user' %}<user>{{ m['content'] }}{% endif %}{% endfor %}"
OF_PARTS = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'][0]['text'] }}{% endfor %}"
DATED = "{{ bos_token }}Today is {{ strftime_now('%d %b %Y') }}.\n" + TURNS


def with_template(template: Any, kind: Any = byte_level, **options: Any) -> PreTrainedTokenizerFast:
    tokenizer = kind(**options)
    tokenizer.chat_template = template
    return tokenizer


# --- ids of prompts ---


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_prompt_begins_as_the_tokenizer_begins_texts(kind: Any) -> None:
    bare = render("7+9?", PLAIN, kind())
    assert bare == tuple(kind().encode("7+9?\n", add_special_tokens=False))
    for processor in (OPENED, CLOSED):  # the EOS of the second would end the prompt
        tokenizer = kind(processor)
        assert render("7+9?", PLAIN, tokenizer) == (tokenizer.bos_token_id, *bare)
        told = render("7+9?", PromptTemplate(kind="plain", system="a b"), tokenizer)
        assert prompt_text(told, tokenizer).removeprefix("<s>").lstrip() == "a b\n7+9?\n"
        assert told.count(0) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_prompt_has_the_bos_that_its_template_writes(kind: Any) -> None:
    writes = with_template("{{ bos_token }}" + TURNS, kind, processor=OPENED)
    assert render("7+9?", TOLD, writes).count(0) == 1
    assert render("7+9?", TOLD, with_template(TURNS, kind, processor=OPENED)).count(0) == 0


def test_a_date_in_a_template_is_the_same_on_all_days() -> None:
    asked = prompt_text(render("a", CHAT, with_template(DATED)), with_template(DATED))
    assert asked == "<s>Today is 26 Jul 2024.\n<user>a<end>"
    defined = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% endif %}" + TURNS
    assert (
        prompt_text(render("a", CHAT, with_template(defined)), byte_level()) == "2024<user>a<end>"
    )


# --- templates that do not fit ---


@pytest.mark.parametrize(
    ("template", "prompt", "line"),
    [
        (
            NO_SYSTEM,
            TOLD,
            "pair.prompt.system: 'Be brief.': expected null, since the teacher's chat template "
            "refuses a system message (System role not supported)",
        ),
        (
            USER_ALONE,
            TOLD,
            "pair.prompt.system: 'Be brief.': expected null, since the teacher's chat template "
            "leaves the system message out",
        ),
        (
            OF_PARTS,
            CHAT,
            "pair.prompt.kind: 'chat': expected 'plain', since the teacher's chat template leaves "
            "the problem out",
        ),
        (
            None,
            TOLD,
            "pair.prompt.kind: 'chat': expected 'plain', since the tokenizer has no chat template",
        ),
        (
            "{{ raise_exception('never') }}",
            TOLD,
            "pair.prompt.kind: 'chat': expected 'plain', since the teacher's chat template fails "
            "(never)",
        ),
        ("{% for m in messages %}", CHAT, "pair.prompt.kind: 'chat': expected 'plain', since the"),
        ("{{ messages.nothing.more }}", CHAT, "pair.prompt.kind: 'chat': expected 'plain', since"),
        ("{{ 1 + 'x' }}", CHAT, "pair.prompt.kind: 'chat': expected 'plain', since the teacher's"),
        ("{{ 1 / 0 }}", CHAT, "pair.prompt.kind: 'chat': expected 'plain', since the teacher's"),
        ({"tools": TURNS}, CHAT, "pair.prompt.kind: 'chat': expected 'plain', since the teacher's"),
    ],
)
def test_a_template_that_does_not_fit_is_one_line(
    template: Any, prompt: PromptTemplate, line: str
) -> None:
    with pytest.raises(UserError) as refused:
        check_rendering("pair", "7+9?", prompt, with_template(template))
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)
    assert refused.value.key == line.partition(":")[0]


@pytest.mark.parametrize("template", [TURNS, OWN_SYSTEM, DATED, {"default": TURNS}])
def test_templates_that_fit(template: Any) -> None:
    for prompt in (CHAT, TOLD):
        check_rendering("pair", "7+9?", prompt, with_template(template))
    check_rendering("pair", "7+9?", PLAIN, with_template(None))


def test_a_system_message_of_a_templates_own_is_found() -> None:
    assert own_system_message("a", CHAT, with_template(OWN_SYSTEM)) == "You are kind."
    assert own_system_message("a", TOLD, with_template(OWN_SYSTEM)) is None
    for template in (TURNS, NO_SYSTEM, USER_ALONE, DATED):
        assert own_system_message("a", CHAT, with_template(template)) is None
    assert own_system_message("a", PLAIN, with_template(OWN_SYSTEM)) is None


# --- texts of tokens ---


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


def test_blanks_of_sentencepiece_stand_at_their_tokens() -> None:
    tokenizer = sentencepiece()
    ids = tokenizer.encode("What is the 7 , é", add_special_tokens=False)
    assert token_texts(ids, tokenizer) == ["What", " is", " the", " ", "7", " ,", " ", "", "é"]


@pytest.mark.parametrize("kind", KINDS)
def test_token_texts_of_any_ids_make_the_decoded_text(kind: Any) -> None:
    tokenizer, rng = kind(), random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(len(tokenizer)) for _ in range(rng.randrange(24))]
        found = token_texts(ids, tokenizer)
        assert len(found) == len(ids)
        assert "".join(found) == response_text(ids, -1, tokenizer) == prompt_text(ids, tokenizer)


def test_shipped_tokenizers_begin_texts_with_nothing() -> None:
    for name in ("characters", "bytes"):
        tokenizer = make_tokenizer(name)
        assert render("7+9=?", PLAIN, tokenizer) == tuple(tokenizer.encode("7+9=?\n"))


def test_no_blank_before_punctuation_is_lost() -> None:
    tokenizer = sentencepiece()
    ids = tokenizer.encode("a . b , c ?", add_special_tokens=False)
    assert response_text(ids, 1, tokenizer) == "a . b , c ?"
