"""Renders problems as token ids, the same for student and teacher, training and evaluation.

The words around a problem are those of the setup's `prompt` (`config.PromptTemplate`). A chat
template is that of the teacher's tokenizer, the only one of a setup (`engines.tokenizer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from transformers import PreTrainedTokenizerBase

from orchestrator.config import PromptTemplate
from orchestrator.errors import UserError
from orchestrator.grading.boxes import open_thought

# More tokens than a template spends on the tag that opens a thought.
_THOUGHT_TOKENS = 32


def render(
    problem: str, template: PromptTemplate, tokenizer: PreTrainedTokenizerBase
) -> tuple[int, ...]:
    """Render one prompt as token ids. UserError if the setup needs a missing chat template."""
    if template.kind == "plain":
        text = f"{template.system}\n{problem}\n" if template.system else f"{problem}\n"
        return tuple(tokenizer.encode(text, add_special_tokens=False))
    if not tokenizer.chat_template:
        raise UserError(
            "prompt.kind: 'chat': expected 'plain', since the tokenizer has no chat template"
        )
    messages: list[dict[str, str]] = []
    if template.system:
        messages.append({"role": "system", "content": template.system})
    messages.append({"role": "user", "content": problem})
    text = tokenizer.apply_chat_template(
        messages,
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=template.enable_thinking,
    )
    return tuple(tokenizer.encode(cast(str, text), add_special_tokens=False))


def prompt_text(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """The text of a rendered prompt, special tokens included."""
    return cast(str, tokenizer.decode(list(ids), skip_special_tokens=False))


def token_texts(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The text of each token; a letter that spans several tokens stands at its last one."""
    texts: list[str] = []
    pending: list[int] = []
    for token in ids:
        pending.append(token)
        text = cast(str, tokenizer.decode(pending, skip_special_tokens=False))
        # A decoder shows a part of a letter as U+FFFD. No letter has more than four bytes, so longer
        # ones hold bytes that are no letter at all.
        if text.endswith("\ufffd") and len(pending) < 4:
            texts.append("")
            continue
        texts.append(text)
        pending = []
    if pending:
        texts[-1] = cast(str, tokenizer.decode(pending, skip_special_tokens=False))
    return texts


def response_text(ids: list[int], eos: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """The text of a response without its closing EOS."""
    return cast(str, tokenizer.decode([i for i in ids if i != eos], skip_special_tokens=False))


def graded_text(prompt_ids: Sequence[int], text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """A response's text as the grader reads it: after the thought that its prompt opens, if any."""
    end = list(prompt_ids)[-_THOUGHT_TOKENS:]
    return open_thought(cast(str, tokenizer.decode(end, skip_special_tokens=False))) + text
