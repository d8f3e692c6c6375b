"""Renders problems as token ids, the same for student and teacher, training and evaluation.

The words around a problem are those of the setup's `prompt` (`config.PromptTemplate`). A chat
template is that of the teacher's tokenizer, the only one of a setup (`engines.common.causal`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import cast

from transformers import PreTrainedTokenizerBase

from orchestrator.config import PromptTemplate
from orchestrator.errors import UserError, one_line, refuse
from orchestrator.grading.notation import open_thought

# More tokens than a template spends on the tag that opens a thought.
_THOUGHT_TOKENS = 32
# Today for chat templates that ask: the prompts of a sweep that goes on tomorrow are the same. It is
# the date that Llama 3's templates write where they cannot ask.
TODAY = datetime(2024, 7, 26)
OTHER = "another text"  # to see whether a chat template shows what it is given


def render(
    problem: str, template: PromptTemplate, tokenizer: PreTrainedTokenizerBase
) -> tuple[int, ...]:
    """Render one prompt as token ids. UserError if the chat template is missing or fails."""
    if template.kind == "plain":
        text = f"{template.system}\n{problem}\n" if template.system else f"{problem}\n"
        return _with_opening(text, tokenizer)
    # A chat template writes the token itself with which a text begins.
    return tuple(tokenizer.encode(_chat(problem, template, tokenizer), add_special_tokens=False))


def check_rendering(
    name: str, problem: str, template: PromptTemplate, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Raise UserError unless prompts can be rendered, and show system message and problem.

    `name` is the setup's.
    """
    try:
        render(problem, template, tokenizer)
    except UserError as error:
        raise UserError(f"{name}.{error}", f"{name}.{error.key}") from None
    if template.kind == "plain":
        return
    shown = _chat(problem, template, tokenizer)
    if template.system:
        other = replace(template, system=f"{template.system} {OTHER}")
        if _chat(problem, other, tokenizer) == shown:
            raise refuse(
                f"{name}.prompt.system",
                template.system,
                "null, since the teacher's chat template leaves the system message out",
            )
    if _chat(f"{problem} {OTHER}", template, tokenizer) == shown:
        raise refuse(
            f"{name}.prompt.kind",
            "chat",
            "'plain', since the teacher's chat template leaves the problem out",
        )


def own_system_message(
    problem: str, template: PromptTemplate, tokenizer: PreTrainedTokenizerBase
) -> str | None:
    """The system message that a chat template writes where the setup gives none; None if none."""
    if template.kind == "plain" or template.system:
        return None
    shown = _chat(problem, template, tokenizer)
    try:
        given = _chat(problem, replace(template, system=OTHER), tokenizer)
    except UserError:
        return None
    before, _, after = given.partition(OTHER)
    if not (shown.startswith(before) and shown.endswith(after)):
        return None
    return shown[len(before) : len(shown) - len(after)] or None


def prompt_text(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """The text of a rendered prompt, special tokens included."""
    return _decoded(ids, tokenizer)


def token_texts(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The text of each token; a letter that spans several tokens stands at its last one.

    The texts make the decoded text together. Decoders drop a blank at the beginning of a text or
    show an unfinished letter as U+FFFD, so that a token is read behind those before it.
    """
    texts: list[str] = []
    before = 0  # first token of the last group that was shown; the window begins here
    start = 0  # first token that is not shown yet
    for end in range(1, len(ids) + 1):
        known = _decoded(ids[before:start], tokenizer)
        text = _decoded(ids[before:end], tokenizer)
        # No letter has more than four bytes, so longer groups hold bytes that are no letter at all.
        if text.endswith("\ufffd") and end - start < 4 and end < len(ids):
            texts.append("")
            continue
        texts.append(text[len(known) :])
        before, start = start, end
    whole = _decoded(ids, tokenizer)
    return texts if "".join(texts) == whole else _cut(whole, ids, tokenizer)


def response_text(ids: list[int], eos: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """The text of a response without its closing EOS."""
    return _decoded([i for i in ids if i != eos], tokenizer)


def graded_text(prompt_ids: Sequence[int], text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """A response's text as the grader reads it: after the thought that its prompt opens, if any."""
    end = list(prompt_ids)[-_THOUGHT_TOKENS:]
    return open_thought(cast(str, tokenizer.decode(end, skip_special_tokens=False))) + text


def _with_opening(text: str, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The ids of a text, behind the ids with which the tokenizer begins each text, a BOS or none.

    An EOS that a tokenizer adds at the end would end the prompt, and is left out.
    """
    ids = tokenizer.encode(text, add_special_tokens=False)
    if tokenizer.encode("", add_special_tokens=True):
        whole = tokenizer.encode(text, add_special_tokens=True)
        for start in range(len(whole) - len(ids) + 1):
            if whole[start : start + len(ids)] == ids:
                return (*whole[:start], *ids)
    return tuple(ids)


def _chat(problem: str, template: PromptTemplate, tokenizer: PreTrainedTokenizerBase) -> str:
    """The text of a prompt by the tokenizer's chat template. UserError if it is missing or fails."""
    if not tokenizer.chat_template:
        raise refuse("prompt.kind", "chat", "'plain', since the tokenizer has no chat template")
    messages: list[dict[str, str]] = []
    if template.system:
        messages.append({"role": "system", "content": template.system})
    messages.append({"role": "user", "content": problem})
    try:
        text = tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=template.enable_thinking,
            strftime_now=TODAY.strftime,  # in place of transformers' own
        )
    except Exception as error:  # a template is a program of others, and can fail in any way
        words = one_line(error)
    else:
        return cast(str, text)
    if template.system:
        _chat(problem, replace(template, system=None), tokenizer)  # fails too if it is not this
        raise refuse(
            "prompt.system",
            template.system,
            f"null, since the teacher's chat template refuses a system message ({words})",
        )
    raise refuse(
        "prompt.kind", "chat", f"'plain', since the teacher's chat template fails ({words})"
    )


def _decoded(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """The text of ids, exactly: some tokenizers would remove blanks before punctuation."""
    text = tokenizer.decode(
        list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return cast(str, text)


def _cut(whole: str, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Cut a text at its tokens where a token changes how those before it are decoded.

    A decoder shows each byte of a run as U+FFFD, for example, if the run's last byte fits none.
    """
    texts: list[str] = []
    shown = 0
    for end in range(1, len(ids) + 1):
        text = whole if end == len(ids) else _decoded(ids[:end], tokenizer)
        reached = shown
        while reached < min(len(text), len(whole)) and text[reached] == whole[reached]:
            reached += 1
        texts.append(whole[shown:reached])
        shown = reached
    return texts
