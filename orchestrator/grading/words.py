r"""Compares answers that are not algebra: words, choices, numerals in a base, times, ratios."""

from __future__ import annotations

import re

from orchestrator.grading.spelling import TEXT
from orchestrator.grading.structure import enclosed

_WRAPPED = re.compile(rf"(?:{TEXT})\s*\{{(?P<inner>[^{{}}]*)\}}")
_WORDS = re.compile(r"\(?[A-Za-z][A-Za-z .,'()-]*(?:\d{1,2}(?:st|nd|rd|th)?)?")
# Words that may stand around the one that answers.
_FILLERS = re.compile(r"\b(?:an?|the|is|it|on|due|function|number|only)\b")
_CHOICE = re.compile(r"\(?([A-Z])\)?", re.IGNORECASE)
# `(C) 12`, `C. 12`, `Option C`: a choice with its meaning, or with the word for a choice.
_LABELLED = (
    re.compile(r"\(([A-Z])\)(?!.*\([A-Z]\)).*", re.DOTALL),
    re.compile(r"([A-Z])\s*[.:)]\s*(?![A-Z][.:)]).*", re.DOTALL),
    re.compile(
        r"(?:choice|option|graph|answer|statement|figure)\s*:?\s*\(?([A-Z])\)?", re.IGNORECASE
    ),
)
_BASED = re.compile(r"(?P<digits>-?[0-9A-Z]+)_(?P<base>[0-9]+)")
_BASE_WORDS = re.compile(r"\s*(?:,|in|\()?\s*base[\s-]*(\d+)\)?$", re.IGNORECASE)
_OVERLINE = re.compile(r"\\(?:overline|underline)\s*\{([^{}]*)\}")
_CLOCK = re.compile(r"(?P<digits>\d{1,9}(?::\d{1,9}){1,2})(?P<half>[ap]m)?", re.ASCII)
_NUMBERS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
]


def squeezed(text: str) -> str:
    """Remove spaces, except between digits."""
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def unwrapped(text: str) -> str:
    r"""Replace text commands by their content; drop outer parentheses and a final period."""
    text = re.sub(r"\s+", " ", _WRAPPED.sub(lambda wrapped: wrapped["inner"], text))
    text = text.strip().rstrip(".").strip()
    brackets = enclosed(text)
    return brackets[1] if brackets and brackets[0] == "(" and brackets[2] == ")" else text


def same_letters(gold: str, answer: str, _: float | None) -> bool | None:
    """Accept equal characters as equal answers, even if nothing can parse them."""
    return True if squeezed(gold) == squeezed(answer) else None


def same_words(gold: str, answer: str, _: float | None) -> bool | None:
    r"""Compare a gold of words (``\text{Evelyn}``, ``\text{(C)}``) as text, not as letters' product."""
    # The name of the words is not part of the answer: `\text{winner} = \text{Evelyn}`.
    gold_words = unwrapped(gold)
    answer_words = unwrapped(answer.rpartition("=")[2])
    if gold_words.casefold() in _NUMBERS:
        word = gold_words.casefold()
        return answer_words.casefold() in (word, str(_NUMBERS.index(word)))
    if answer_words.casefold() in _NUMBERS and gold_words.isdigit():
        return int(gold_words) == _NUMBERS.index(answer_words.casefold())
    same = _plain(gold_words) == _plain(answer_words)
    if not _WRAPPED.search(gold) or not _WORDS.fullmatch(gold_words):
        # Letters outside a text command may be a product, unless they spell the same word.
        is_word = len(gold_words) > 1 and gold_words.replace(" ", "").isalpha()
        return True if same and is_word else None
    label = _label(answer) if _CHOICE.fullmatch(gold_words) else None
    return label.casefold() == gold_words.casefold() if label else same


def _plain(text: str) -> str:
    """Words without case, fillers, quotes and ordinal ending."""
    words = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", re.sub(r"[\"'`]", "", text.casefold()))
    if words.startswith("neither "):
        return "neither"
    return " ".join(_FILLERS.sub("", words).split()) or words.strip()


def _label(answer: str) -> str | None:
    """The letter of a labelled choice, ``C`` of ``(C) 12``; None for other answers."""
    text = re.sub(r"\s+", " ", _WRAPPED.sub(lambda wrapped: wrapped["inner"], answer)).strip()
    for pattern in _LABELLED:
        match = pattern.fullmatch(text)
        if match:
            return match[1]
    return None


def same_in_base(gold: str, answer: str, _: float | None) -> bool | None:
    """Compare ``52_8``: the digits must agree, and the bases if both sides give one.

    An answer may leave out the base that its question names.
    """
    gold_digits, gold_base = _numeral_in_base(gold)
    answer_digits, answer_base = _numeral_in_base(answer)
    if gold_base is None and answer_base is None:
        return None
    for digits in (gold_digits, answer_digits):
        if not re.fullmatch(r"-?[0-9A-Z]+", digits):
            return None
    same_base = gold_base == answer_base or None in (gold_base, answer_base)
    return gold_digits == answer_digits and same_base


def _numeral_in_base(text: str) -> tuple[str, str | None]:
    """(digits, base or None) of ``52_8``, ``(52)_{8}``, ``52 base 8``."""
    text = _OVERLINE.sub(r"\1", _WRAPPED.sub(lambda wrapped: wrapped["inner"], text)).strip()
    text = _BASE_WORDS.sub(r"_\1", text)
    text = re.sub(r"_\s*\{?\s*\(?(?:base\s*)?(\d+)\)?\s*\}?$", r"_\1", text)
    text = squeezed(re.sub(r"^[({]+(-?[0-9A-Z\s]+)[)}]+_", r"\1_", text))
    match = _BASED.fullmatch(text)
    return (match["digits"], match["base"]) if match else (text, None)


def same_clock(gold: str, answer: str, _: float | None) -> bool | None:
    """Compare times of day and ratios: ``05:00`` equals ``5:00``; am and pm count if both say one."""
    gold_time, answer_time = _clock(gold), _clock(answer)
    if not gold_time or not answer_time:
        return None
    (gold_parts, gold_half), (answer_parts, answer_half) = gold_time, answer_time
    if gold_half and answer_half and gold_half != answer_half:
        return False
    return gold_parts == answer_parts


def _clock(text: str) -> tuple[list[int], str | None] | None:
    """([8, 34], "pm") of ``8:34 p.m.``; None for anything else."""
    match = _CLOCK.fullmatch(re.sub(r"[\s.{}]", "", unwrapped(text)).casefold())
    if not match:
        return None
    return [int(part) for part in match["digits"].split(":")], match["half"]
