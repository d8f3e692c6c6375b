"""The structure of an answer: brackets, elements, sides of an equation, names."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import chain

_OPEN, _CLOSE = "([{", ")]}"
_PARAMETER = re.compile(
    r"\(?(?:\\text\s*\{[^{}]*\}\s*)?[a-z]\s*(?:,\s*[a-z]\s*)*(?:\\in\s*\\math(?:bb|bf|rm|cal)\s*\{?[ZNQR]\}?|"
    r"\\text\s*\{\s*(?:is|be|an|any|are)\b[^{}]*integers?[^{}]*\}).*"
)
_SOLUTION_SET = re.compile(
    r"(?P<name>[^=<>]*?)(?:\\in(?![A-Za-z])\s*(?=[\[(\\])|=\s*(?=\\\{))(?P<set>.*)", re.DOTALL
)
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![A-Za-z])")
_MOST_SIGNS = 4
_THOUSANDS_COMMA = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)")
_SPACED_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:, ?\d{3})+(?:\.\d+)?")
EQUALS = r"(?<![<>!:\\])="
RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|neq|lt|gt)(?![A-Za-z])")
_NAME = re.compile(r"[A-Za-z\\|][A-Za-z\\_{}(), 0-9'|]*")
# An inverse or a transpose is named by its exponent; any other power is computed.
_MATRIX_POWER = re.compile(r"(?<=[A-Z}])\s*\^\s*\{?\s*(?:-1|T)\s*\}?$")
_NOT_NAMES = re.compile(
    r"\\(?:frac|sqrt|cdot|times|pm|mp|le|ge|in|cup|sin|cos|tan|log|ln|pi|infty|binom)(?![A-Za-z])"
)


def split_top(text: str, separator: str) -> list[str]:
    """Split at a separator, a regular expression, outside all brackets.

    At commas `1,(2,3)` becomes `1` and `(2,3)`. Parts are stripped, and empty ones left out.
    """
    parts: list[str] = []
    depth = start = at = 0
    pattern = re.compile(separator)
    while at < len(text):
        match = pattern.match(text, at) if depth == 0 else None
        if match:
            parts.append(text[start:at])
            at = start = match.end()
            continue
        depth += (text[at] in _OPEN) - (text[at] in _CLOSE)
        at += 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def enclosed(text: str) -> tuple[str, str, str] | None:
    r"""(opening, content, closing) if one pair of ``( [ \{`` spans the whole text, else None."""
    opening = "\\{" if text.startswith("\\{") else text[:1]
    closing = "\\}" if text.endswith("\\}") else text[-1:]
    if opening not in ("(", "[", "\\{") or closing not in (")", "]", "\\}") or len(text) < 3:
        return None
    depth = 0
    for at in range(len(opening) - 1, len(text)):
        depth += (text[at] in _OPEN) - (text[at] in _CLOSE)
        if depth == 0 and at < len(text) - 1:
            return None
    if depth != 0:
        return None
    return opening, text[len(opening) : len(text) - len(closing)].strip(), closing


def is_name(text: str) -> bool:
    r"""Whether text only names a quantity: ``x``, ``m_{\max}``, ``f(x)``, ``\angle ABC``."""
    text = _MATRIX_POWER.sub("", text.strip())
    brackets = enclosed(text)
    if brackets and brackets[0] == "(":
        return all(is_name(part) for part in split_top(brackets[1], ","))
    return bool(_NAME.fullmatch(text)) and len(text) <= 40 and not _NOT_NAMES.search(text)


def named(text: str) -> tuple[str, str] | None:
    """(name, value) of ``name = ... = value`` or ``value = name``; None for other texts."""
    if RELATION.search(text):
        return None
    sides = split_top(text, EQUALS)
    if len(sides) < 2:
        return None
    if is_name(sides[0]):
        return sides[0], sides[-1]
    return (sides[1], sides[0]) if len(sides) == 2 and is_name(sides[1]) else None


def both_signs(part: str) -> list[str]:
    r"""Split ``a \pm b`` into its two values; all signs of one element move together."""
    if not _PLUS_MINUS.search(part):
        return [part]
    upper = _PLUS_MINUS.sub(lambda sign: "+" if sign[1] == "pm" else "-", part)
    lower = _PLUS_MINUS.sub(lambda sign: "-" if sign[1] == "pm" else "+", part)
    return [upper, lower]


def free_signs(part: str) -> list[str]:
    r"""Split ``(\pm a, \pm b)`` into its four values."""
    if not _PLUS_MINUS.search(part):
        return [part]
    plus, minus = (_PLUS_MINUS.sub(sign, part, count=1) for sign in "+-")
    return free_signs(plus) + free_signs(minus)


def elements(text: str, signs: Callable[[str], list[str]] = both_signs) -> list[str]:
    r"""The elements of an answer, without set braces and clauses such as ``k \in \mathbb{Z}``.

    `signs` writes out ``\pm``.
    """
    parts = split_top(text, "[,;]")
    if len(parts) == 1:
        member = _SOLUTION_SET.fullmatch(parts[0])
        if member and is_name(member["name"]):
            return elements(member["set"], signs)
        brackets = enclosed(parts[0])
        if brackets and brackets[0] == "\\{" and brackets[2] == "\\}":
            return elements(brackets[1], signs)
    kept = [part for part in parts if not _PARAMETER.fullmatch(part)] or parts
    return list(chain.from_iterable(map(signs, kept)))


def readings(text: str, *, is_list: bool) -> list[list[str]]:
    r"""The ways to read an answer.

    ``58,500`` is a list and a number; with ``is_list`` the benchmark says that it's a list, so only
    that reading is right. ``(\pm 1, \pm 2)`` is two pairs or four. ``a = b = 2`` is one chain and
    two values.
    """
    ways = [elements(text)]
    if "(" in text and 1 < len(_PLUS_MINUS.findall(text)) <= _MOST_SIGNS:
        ways.append(elements(text, free_signs))
    if is_list:
        return ways
    bracketed = any(mark in text for mark in ("(", "[", "\\{"))
    if _SPACED_THOUSANDS.fullmatch(text):
        ways.append([re.sub(", ?", "", text)])
    elif not bracketed and _THOUSANDS_COMMA.search(text):
        ways.append(elements(_THOUSANDS_COMMA.sub(lambda number: number[0].replace(",", ""), text)))
    sides = split_top(text, EQUALS)
    if len(sides) > 2 and len(ways[0]) == 1 and all(is_name(side) for side in sides[:-1]):
        ways.append([f"{name}={sides[-1]}" for name in sides[:-1]])
    return ways
