r"""Finds the answer that a generation states: its last ``\boxed{...}``, or several as one list.

Thoughts (``<think>…</think>``) are no answer, and neither is a box that the text only mentions:
``as asked, in \boxed{}``, ``in \boxed at the end``, ``\boxed{your answer}``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from orchestrator.grading.gold import Gold
from orchestrator.grading.notation import TEXT, listed, readings, spelled

_BOX = r"\\+(?:boxed|fbox)(?![A-Za-z])"
_TOKEN = re.compile(_BOX + r"\s*(?P<brace>\{)?|\\[\\{}]|[{}]")
# Content of a box that has no braces (`\boxed 5`). It begins like mathematics: in `\boxed at the
# end` or `in \boxed a` the text only mentions the command.
_BARE = re.compile(
    r"[ \t]*(?:[-+−±(\[][ \t]*|\*\*)*(?:\.?\d|\\(?:[A-Za-z]{2}|\{)|(?![aI]\s+[A-Za-z])[A-Za-z](?![A-Za-z]))"
    r"[^$\n]{0,200}?(?=\$|\\\)|\\\]|\n|$|\s[a-z]{2}|[.;]\s)"
)
# Content of a box that was never closed (`\boxed{5$`).
_UNCLOSED = re.compile(r"[^$\n]{1,200}(?=\$)")
# Text between two boxes that joins them to one list: `$\boxed{2}$ and $x = \boxed{3}$`.
_BLANK = r"\s|\$|\\[()\[\],;! ]|\\q?quad(?![A-Za-z])|~|&"
_AND = r"[,;]|\\text\s*\{\s*,?\s*(?:and|or)\s*\}|\b(?:and|or)\b"
_JOINS = re.compile(
    rf"(?:{_BLANK})*(?:{_AND})(?:{_BLANK}|{_AND})*(?:[A-Za-z](?:_\{{?\w{{1,4}}\}}?)?\s*=\s*\$?\s*)?"
)
_MAX_JOIN = 60
# A box to be filled in: `...`, `\ldots`, `?`, `___`.
_BLANKS = re.compile(
    rf"(?:{TEXT}(?![A-Za-z])|\\(?:[lc]?dots|dots[bcimo]|q?quad|square|Box)(?![A-Za-z])|\\[,;:!> _]|"
    r"[\s{}$.…?_~□])*"
)
# Words in place of an answer: `answer`, `your final answer`, `<insert the result here>`.
_AROUND_WORDS = re.compile(rf"{TEXT}(?![A-Za-z])|\\[lc]?dots|\\_|[\s{{}}()\[\]<>*_`'\"$.…:~-]+")
_PLACEHOLDER = re.compile(
    r"(?:(?:insert|put|write|place|enter|give|state|the|my|a|an|this|final|correct|exact|numerical|numeric|"
    r"simplified) )*(?:answers?|ans|results?|solutions?|response)(?: goes)?(?: here)?|"
    r"(?:(?:insert|put|write|place|enter) )?your(?: [a-z]+){1,5}|(?:你的|最终|正确)*答案",
    re.IGNORECASE,
)
_MAX_PLACEHOLDER = 80
# Where a thought begins or ends. In quotation marks, or before the word "tag", it is a mention.
_THOUGHT = re.compile(
    r"(?<![`\"'“])(?:<(?P<end>/)?(?i:think|thinking|thought|reasoning)>|\[(?P<END>/)?THINK\]|"
    r"<\|(?:begin|(?P<over>end))_of_thought\|>)(?!\s+tags?\b)"
)
# No gold is a tenth as long. Longer answers are derivations or degenerate repetition; parsing them
# is slow and useless.
MAX_ANSWER_CHARS = 2000
# A box with one of several answers is short. This process would count longer texts without any
# deadline.
_MAX_PART = 200


def without_thoughts(text: str) -> str:
    """The text after the last thought; nothing if it ends within a thought.

    The first tag may be missing, because some chat templates end with it (`open_thought`).
    """
    last = None
    for tag in _THOUGHT.finditer(text):
        last = tag
    if last is None:
        return text
    return text[last.end() :] if last["end"] or last["END"] or last["over"] else ""


def open_thought(prompt: str) -> str:
    """The tag with which a prompt ends, so that its response begins within a thought; else empty."""
    last = None
    for tag in _THOUGHT.finditer(prompt):
        last = tag
    if last is None or prompt[last.end() :].strip():
        return ""
    return "" if last["end"] or last["END"] or last["over"] else last[0]


def _is_mention(content: str) -> bool:
    """Whether a box only stands for an answer: its content is blank, or such as `your answer`."""
    if len(content) > _MAX_PLACEHOLDER:
        return False
    words = _AROUND_WORDS.sub(" ", content).strip()
    return bool(_BLANKS.fullmatch(content) or _PLACEHOLDER.fullmatch(words))


@dataclass(frozen=True)
class _Box:
    """Content of one box, the start of its command and the end of its braces."""

    content: str
    start: int
    end: int


def _boxes(text: str) -> list[_Box]:
    r"""Complete boxes with an answer, in the order of their start; of nested ones only the innermost.

    A box without braces reaches to the end of its formula or line. A box that is never closed
    counts if its formula ends (``\boxed{5$``), but not if the text ends with it, since the answer
    may then be cut off. One forward pass with a stack keeps the time linear even for thousands of
    unclosed boxes.
    """
    # For a box the starts of its command and content, for other braces None.
    open_braces: list[tuple[int, int] | None] = []
    boxes: list[_Box] = []
    for token in _TOKEN.finditer(text):
        kind = token.group()
        is_command = len(kind) > 2
        if is_command and token["brace"]:
            open_braces.append((token.start(), token.end()))
        elif is_command:
            bare = _BARE.match(text, token.end())
            if bare:
                boxes.append(_Box(bare[0].strip().rstrip(".").strip(), token.start(), bare.end()))
        elif kind == "{":
            open_braces.append(None)
        elif kind == "}" and open_braces:
            opened = open_braces.pop()
            if opened:
                boxes.append(_Box(text[opened[1] : token.start()].strip(), opened[0], token.end()))
    last = max((opened for opened in open_braces if opened), default=None)
    unclosed = _UNCLOSED.match(text, last[1]) if last else None
    if last and unclosed and all(box.start < last[0] for box in boxes):
        boxes.append(_Box(unclosed[0].strip(), last[0], unclosed.end()))
    boxes = [box for box in boxes if not _is_mention(box.content)]
    boxes.sort(key=lambda box: box.start)
    # Of nested boxes the innermost stays: one that holds another ends after the other starts.
    inner = [box for box, after in pairwise(boxes) if after.start >= box.end]
    return inner + boxes[-1:]


def last_boxed(text: str) -> str | None:
    r"""Content of the last ``\boxed{...}`` or ``\fbox{...}``, stripped; None if no box has an answer.

    Boxes joined only by "and", "or" or a comma are one answer, a comma-separated list. Boxes within
    thoughts do not count.
    """
    text = without_thoughts(text)
    boxes = _boxes(text)
    joined = boxes[-1:]
    for box in reversed(boxes[:-1]):
        between = text[box.end : joined[0].start]
        if len(between) > _MAX_JOIN or not _JOINS.fullmatch(between):
            break
        joined.insert(0, box)
    return ", ".join(dict.fromkeys(box.content for box in joined)) or None


def extract(gold: Gold, text: str) -> str | None:
    """The answer a generation puts in a box; None without a box.

    It is the one of `last_boxed`, unless the gold has several answers and the text exactly as many
    different boxes with one answer each. Then these are the list, as in "Alice gets \\boxed{1}. Bob
    is left with \\boxed{2}."
    """
    text = without_thoughts(text)
    parts = _count(gold.answer) if len(gold.answer) <= MAX_ANSWER_CHARS else 1
    if parts > 1 and text.count("box") >= parts:
        contents = list(dict.fromkeys(box.content for box in _boxes(text)))
        if len(contents) == parts and all(map(_is_one_answer, contents)):
            return ", ".join(contents)
    return last_boxed(text)


def _is_one_answer(content: str) -> bool:
    return len(content) <= _MAX_PART and _count(content) == 1


@lru_cache(maxsize=10_000)
def _count(answer: str) -> int:
    """Number of answers in a text; of two readings (``58,500``) the one with fewer."""
    return min(len(reading) for reading in readings(listed(spelled(answer)), is_list=False))
