r"""Answers that are not algebra: words, choices, numerals in a base, clock times, ratios."""

from __future__ import annotations

import re

from orchestrator.grading.spelling import TEXT
from orchestrator.grading.structure import enclosed

_WRAPPED = re.compile(rf"(?:{TEXT})\s*\{{(?P<inner>[^{{}}]*)\}}")
_WORDS = re.compile(r"\(?[A-Za-z][A-Za-z .,'()-]*(?:\d{1,2}(?:st|nd|rd|th)?)?")
# Words that may stand around the one that answers.
_FILLERS = re.compile(r"\b(?:an?|the|is|it|on|due|function|number|only)\b")
_CHOICE = re.compile(r"\(?([A-Z])\)?", re.IGNORECASE)
# `(C) 12`, `C. 12`, `Option C`: a choice with what it stands for, or with what it is.
_LABELLED = (
    re.compile(r"\(([A-Z])\)(?!.*\([A-Z]\)).*", re.DOTALL),
    re.compile(r"([A-Z])\s*[.:)]\s*(?![A-Z][.:)]).*", re.DOTALL),
    re.compile(r"(?:choice|option|graph|answer|statement|figure)\s*:?\s*\(?([A-Z])\)?", re.IGNORECASE),
)
_BASED = re.compile(r"(?P<digits>-?[0-9A-Z]+)_(?P<base>[0-9]+)")
_BASE_WORDS = re.compile(r"\s*(?:,|in|\()?\s*base[\s-]*(\d+)\)?$", re.IGNORECASE)
_OVERLINE = re.compile(r"\\(?:overline|underline)\s*\{([^{}]*)\}")
_CLOCK = re.compile(r"(?P<digits>\d{1,9}(?::\d{1,9}){1,2})(?P<half>[ap]m)?", re.ASCII)
_NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def squeezed(text: str) -> str:
    """Without spaces, except between digits."""
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def unwrapped(text: str) -> str:
    r"""Text commands replaced by their content, outer parentheses and final period gone."""
    text = re.sub(r"\s+", " ", _WRAPPED.sub(lambda wrapped: wrapped["inner"], text)).strip().rstrip(".").strip()
    ends = enclosed(text)
    return ends[1] if ends and ends[0] == "(" and ends[2] == ")" else text


def same_letters(gold: str, said: str, _: float | None) -> bool | None:
    """The same characters are the same answer, also where nothing can parse them."""
    return True if squeezed(gold) == squeezed(said) else None


def same_words(gold: str, said: str, _: float | None) -> bool | None:
    r"""A gold that is words (``\text{Evelyn}``, ``\text{(C)}``) compares as text, never as a product of letters."""
    # What words are called is no part of them: `\text{winner} = \text{Evelyn}`.
    right, answer = unwrapped(gold), unwrapped(said.rpartition("=")[2])
    if right.casefold() in _NUMBERS:
        return answer.casefold() in (right.casefold(), str(_NUMBERS.index(right.casefold())))
    if answer.casefold() in _NUMBERS and right.isdigit():
        return int(right) == _NUMBERS.index(answer.casefold())
    same = _plain(right) == _plain(answer)
    if not _WRAPPED.search(gold) or not _WORDS.fullmatch(right):
        return True if same and len(right) > 1 and right.replace(" ", "").isalpha() else None
    choice = _CHOICE.fullmatch(right)
    label = _label(said) if choice else None
    return label.casefold() == right.casefold() if label else same


def _plain(text: str) -> str:
    """Words without case, fillers, quotes and ordinal ending."""
    words = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", re.sub(r"[\"'`]", "", text.casefold()))
    if words.startswith("neither "):
        return "neither"
    return " ".join(_FILLERS.sub("", words).split()) or words.strip()


def _label(said: str) -> str | None:
    """The letter of a labelled choice, None if the answer isn't one."""
    text = re.sub(r"\s+", " ", _WRAPPED.sub(lambda wrapped: wrapped["inner"], said)).strip()
    return next((match[1] for pattern in _LABELLED if (match := pattern.fullmatch(text))), None)


def same_in_base(gold: str, said: str, _: float | None) -> bool | None:
    """``52_8``: the digits must agree, and the base where both state one (a question that asks for a base names it)."""
    right, answer = _numeral_in_base(gold), _numeral_in_base(said)
    if right[1] is None and answer[1] is None:
        return None
    if not re.fullmatch(r"-?[0-9A-Z]+", right[0]) or not re.fullmatch(r"-?[0-9A-Z]+", answer[0]):
        return None
    return right[0] == answer[0] and (right[1] == answer[1] or None in (right[1], answer[1]))


def _numeral_in_base(text: str) -> tuple[str, str | None]:
    """(digits, base or None) of ``52_8``, ``(52)_{8}``, ``52 base 8``."""
    text = _OVERLINE.sub(r"\1", _WRAPPED.sub(lambda wrapped: wrapped["inner"], text)).strip()
    text = _BASE_WORDS.sub(r"_\1", text)
    text = re.sub(r"_\s*\{?\s*\(?(?:base\s*)?(\d+)\)?\s*\}?$", r"_\1", text)
    text = squeezed(re.sub(r"^[({]+(-?[0-9A-Z\s]+)[)}]+_", r"\1_", text))
    match = _BASED.fullmatch(text)
    return (match["digits"], match["base"]) if match else (text, None)


def same_clock(gold: str, said: str, _: float | None) -> bool | None:
    """Times of day and ratios as written: ``05:00`` equals ``5:00``; morning and afternoon where both say which."""
    right, answer = (_CLOCK.fullmatch(re.sub(r"[\s.{}]", "", unwrapped(text)).casefold()) for text in (gold, said))
    if not right or not answer:
        return None
    if right["half"] and answer["half"] and right["half"] != answer["half"]:
        return False
    return [int(part) for part in right["digits"].split(":")] == [int(part) for part in answer["digits"].split(":")]
