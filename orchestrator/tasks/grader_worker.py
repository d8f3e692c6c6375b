r"""The grading process: decides whether an extracted answer equals a gold answer.

Run as ``python -m orchestrator.tasks.grader_worker``. It speaks JSON lines: first ``{"ready": true}``, then for each
``{"gold": {...}, "answer": str, "deadline_s": float}`` on stdin one ``{"correct": bool}`` on stdout. It ends when stdin
closes. If its parent dies while an answer hangs, its own alarm ends it.

How an answer is judged. Both sides are cleaned (:func:`clean`), read as a list of elements (:func:`readings`), and the
elements are matched one to one in free order (a bracketed tuple keeps its order). Two elements are compared by the
``_RULES`` in turn; the first that has an opinion decides, and math_verify has the last word.
"""

from __future__ import annotations

import json
import math
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from orchestrator.tasks.grader import Gold, decide_plain, plain_number, within

# Address space in bytes: towers of powers exhaust the machine's memory well before any deadline.
_MEMORY_LIMIT = 4 << 30
# math_verify rounds floats to 6 decimals, by which 0.0000671 equals 0.0000672. Two numbers it finds equal must also
# agree to this relative difference; 0.333333 for 1/3 still does.
_RELATIVE_LIMIT = Fraction(1, 100_000)

Rule = Callable[[str, str, float | None], bool | None]

# --- cleaning: spelling only, never the value -------------------------------------------------------------------

_UNICODE = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "°": r"^\circ ", "π": r"\pi ",
    "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∈": r"\in ", "±": r"\pm ",
    "≈": r"\approx ", "，": ",", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "½": r"\frac{1}{2}",
}  # fmt: skip
_TEXT = r"\\(?:text|textbf|textit|textrm|textnormal|textsf|mbox|hbox|mathrm|mathbf|mathit|mathsf|operatorname)"
# Of two digit groups joined by one of these, the mark separates thousands and never list elements.
_THOUSANDS_MARK = re.compile(r"(?<=\d)(?:,\\!\s*|\{,\}\s*|\\,|\\;|\\!|~)(?=\d{3}(?!\d))")
_THOUSANDS_COMMA = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_THOUSANDS_SPACE = re.compile(r"[+-]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_SPACING = re.compile(
    r"\\(?:left|right|bigl|bigr|Bigl|Bigr|biggl|biggr|big|Big|bigg|displaystyle|textstyle|quad|qquad|limits)"
    r"(?![A-Za-z])\.?|(?<!\\)\\[,;:!> ]|~|\\h?phantom\s*(?:\{[^{}]*\}|.)"
)
_AND_OR = re.compile(_TEXT + r"\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|\\(?:lor|land|vee)\b")
_DEGREES = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z]))")
_TRIG = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_PERCENT = re.compile(r"\s*(?:\\?%|" + _TEXT + r"\s*\{\s*percent\s*\}|(?<![A-Za-z\\])percent(?![A-Za-z]))")
_CURRENCY = re.compile(r"\\?\$|[£€¥]|\\(?:pounds|euro)(?![A-Za-z])")
_SYNONYMS = (
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\frac\s*(\\pi)\s*([A-Za-z0-9])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*([A-Za-z0-9])\s*(\\pi)(?![A-Za-z])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*(\{[^{}]*\})\s*(\\pi)(?![A-Za-z])"), r"\\frac\1{\2}"),
    (re.compile(r"^\\approx(?![A-Za-z])\s*"), ""),
    (re.compile(r"\\(?:leqslant|leq)(?![A-Za-z])"), r"\\le"),
    (re.compile(r"\\(?:geqslant|geq)(?![A-Za-z])"), r"\\ge"),
    (re.compile(r"\\lbrace(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\langle(?![A-Za-z])"), "("),
    (re.compile(r"\\rangle(?![A-Za-z])"), ")"),
    (re.compile(r"\\lbrack(?![A-Za-z])"), "["),
    (re.compile(r"\\rbrack(?![A-Za-z])"), "]"),
    # A name straight before a half-open interval has lost its \in: the brackets can't be a product.
    (re.compile(r"^([a-z])\s*((?:\([^()\[\]]*\])|(?:\[[^()\[\]]*\)))$"), r"\1 \\in \2"),
)
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\s*\{\s*(\d{1,50})\s*\}")
_TEXT_LIST = re.compile(_TEXT + r"\s*\{(?P<inner>[^{}]*,[^{}]*)\}")
_MATH_DELIMITERS = ((r"\(", r"\)"), (r"\[", r"\]"))


def clean(text: str) -> str:
    """The answer without currency, math delimiters, spacing commands, degree signs and spelling variants."""
    for symbol, command in _UNICODE.items():
        text = text.replace(symbol, command)
    text = _CURRENCY.sub("", text).strip()
    for opening, closing in _MATH_DELIMITERS:
        if text.startswith(opening) and text.endswith(closing):
            text = text[len(opening) : -len(closing)].strip()
    text = _SPACING.sub(" ", _THOUSANDS_MARK.sub("", text))
    text = _AND_OR.sub(",", text)
    # Inside a sine the sign is a factor; elsewhere it's a unit.
    text = _DEGREES.sub(r"\\cdot\\frac{\\pi}{180}" if _TRIG.search(text) else "", text)
    text = _PERCENT.sub(r"\\%", text)
    text = re.sub(r"\s+", " ", text).strip().rstrip(".,;").strip()
    for pattern, replacement in _SYNONYMS:
        text = pattern.sub(replacement, text)
    text = _REPEATING.sub(_repeating_fraction, text)
    text = _TEXT_LIST.sub(lambda found: ",".join(rf"\text{{{part}}}" for part in found["inner"].split(",")), text)
    return text.replace(" ", "") if _THOUSANDS_SPACE.fullmatch(text) else text


def _repeating_fraction(found: re.Match[str]) -> str:
    r"""``1.2\overline{3}`` as an exact fraction."""
    whole, fixed, period = found.groups()
    shift = 10 ** len(fixed)
    value = Fraction(int((whole or "0") + fixed), shift) + Fraction(int(period), shift * (10 ** len(period) - 1))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


# --- units ------------------------------------------------------------------------------------------------------

_WORD_UNITS = (
    "degrees?|deg|radians?|rad|units?|inch(?:es)?|in|feet|foot|ft|yards?|yd|miles?|mi|mm|cm|dm|km|meters?|metres?|"
    "kilometers?|kilometres?|centimeters?|centimetres?|seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|weeks?|months?|"
    "years?|kg|kilograms?|grams?|mg|lbs?|pounds?|ounces?|oz|tons?|liters?|litres?|ml|gallons?|cents?|dollars?|euros?|"
    "mph|kmh|kph|acres?|people|students?|ways?"
)
_POWER = r"(?:\s*\^\s*(?:\{\s*[23]\s*\}|[23]))?"
# A bare word is a unit only straight after a digit or a closing brace (never `2 ab`), and only from this list.
_BARE_UNIT = re.compile(
    rf"(?<=[\d}})])\s*(?:(?:square|cubic|sq\.?|cu\.?)\s+)?(?:{_WORD_UNITS}){_POWER}"
    rf"(?:\s*(?:/|per)\s*(?:{_WORD_UNITS}|h|s){_POWER})?$"
)
_TEXT_UNIT = re.compile(rf"\s*{_TEXT}\s*\{{(?P<word>[^{{}}]*)\}}{_POWER}\s*$")
# Words that change the value or are symbols themselves.
_NOT_UNITS = re.compile(
    r"\d|[+*=<>]|^\W*(?:i|e|d|T|C|P|am|pm|a\.?\s*m\.?|p\.?\s*m\.?|bc|ad|if|for|where|when|with|mod|"
    r".*\b(?:hundred|thousand|million|billion|trillion|dozen|infinity|base|to|than))\b\W*",
    re.IGNORECASE,
)
_ENDS_OPEN = re.compile(r"(?:[-+*/=<>^_,(\[{]|\\(?:cdot|times|le|ge|in|cup|pm|frac|sqrt))$")


def strip_units(text: str, stated: str | None = None) -> str:
    """The answer without trailing units. ``stated`` is the unit the benchmark names."""
    if stated and text.endswith(stated) and text[: -len(stated)].strip():
        text = text[: -len(stated)].strip()
    for _ in range(3):
        match = _TEXT_UNIT.search(text)
        if match is None or _NOT_UNITS.search(match["word"]):
            match = _BARE_UNIT.search(text)
        rest = text[: match.start()].rstrip() if match else ""
        if not rest or _ENDS_OPEN.search(rest):
            break
        text = rest
    return text


# --- structure --------------------------------------------------------------------------------------------------

_OPEN, _CLOSE = "([{", ")]}"
_PARAMETER = re.compile(r"[a-z]\s*\\in\s*\\math(?:bb|bf|rm)\s*\{?[ZNQR]\}?.*")
_SOLUTION_SET = re.compile(r"(?P<name>[^=<>]*?)\\in(?![A-Za-z])\s*(?P<set>[\[(\\].*)", re.DOTALL)
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![A-Za-z])")


def split_top(text: str, separator: str) -> list[str]:
    """Split at a separator (regular expression) outside all brackets; empty parts go."""
    parts, depth, start, at = [], 0, 0, 0
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
    r"""(opening, content, closing) if one pair of brackets ``( [ \{`` spans the whole text, else None."""
    opening = "\\{" if text.startswith("\\{") else text[:1]
    closing = "\\}" if text.endswith("\\}") else text[-1:]
    if opening not in ("(", "[", "\\{") or closing not in (")", "]", "\\}") or len(text) < 3:
        return None
    depth = 0
    for at in range(len(opening) - 1, len(text)):
        depth += (text[at] in _OPEN) - (text[at] in _CLOSE)
        if depth == 0 and at < len(text) - 1:
            return None
    return (opening, text[len(opening) : len(text) - len(closing)].strip(), closing) if depth == 0 else None


def elements(text: str) -> list[str]:
    r"""The elements of an answer: set braces opened, ``\pm`` written out, range-of-a-parameter clauses dropped."""
    parts = split_top(text, "[,;]")
    if len(parts) == 1:
        member = _SOLUTION_SET.fullmatch(parts[0])
        if member and _is_name(member["name"]) and (inner := member["set"].strip()) != parts[0]:
            return elements(inner)
        ends = enclosed(parts[0])
        if ends and ends[0] == "\\{" and ends[2] == "\\}":
            return elements(ends[1])
    kept = [part for part in parts if not _PARAMETER.fullmatch(part)] or parts
    return [sign for part in kept for sign in _both_signs(part)]


def _both_signs(part: str) -> list[str]:
    r"""``a \pm b`` as its two values; all signs of one element move together."""
    if not _PLUS_MINUS.search(part):
        return [part]
    upper = _PLUS_MINUS.sub(lambda sign: "+" if sign[1] == "pm" else "-", part)
    lower = _PLUS_MINUS.sub(lambda sign: "-" if sign[1] == "pm" else "+", part)
    return [upper, lower]


def readings(text: str, *, listed: bool) -> list[list[str]]:
    """The ways to read an answer: as a list, and with commas between three-digit groups as one number.

    ``58,500`` is both. ``listed``: the benchmark says it's a list, so only that reading is right.
    """
    found = [elements(text)]
    bracketed = any(mark in text for mark in ("(", "[", "\\{"))
    if not listed and not bracketed and _THOUSANDS_COMMA.search(text):
        found.append(elements(_THOUSANDS_COMMA.sub(lambda number: number[0].replace(",", ""), text)))
    return found


# --- rules for two elements -------------------------------------------------------------------------------------

_WRAPPED = re.compile(rf"(?:{_TEXT})\s*\{{(?P<inner>[^{{}}]*)\}}")
_WORDS = re.compile(r"\(?[A-Za-z][A-Za-z .,'()-]*")
_CHOICE = re.compile(r"\(?([A-Z])\)?", re.IGNORECASE)
_LABELLED = re.compile(r"\(([A-Z])\)(?!.*\([A-Z]\)).*", re.DOTALL)
_BASED = re.compile(r"\(?([0-9A-Z]+)\)?_\{?([0-9]+)\}?")
_EQUALS = r"(?<![<>!:\\])="
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|neq|lt|gt)(?![A-Za-z])")
_NAME = re.compile(r"[A-Za-z\\|][A-Za-z\\_{}(), 0-9'|]*")
_NOT_NAMES = re.compile(r"\\(?:frac|sqrt|cdot|times|pm|mp|le|ge|in|cup|sin|cos|tan|log|ln|pi|infty|binom)(?![A-Za-z])")
_VECTOR = re.compile(r"\\begin\{[pb]matrix\}(?P<rows>[^&]*)\\end\{[pb]matrix\}")
_CLOCK = re.compile(r"(\d{1,9}):(\d{1,9})", re.ASCII)
_FUNCTION = re.compile(r"([A-Za-z])\s*\(\s*([A-Za-z])\s*\)")


def _squeezed(text: str) -> str:
    """Without spaces."""
    return re.sub(r"\s+", "", text)


def _literal(gold: str, said: str, _: float | None) -> bool | None:
    """The same characters are the same answer, also where nothing can parse them."""
    return True if _squeezed(gold) == _squeezed(said) else None


def _numerals(gold: str, said: str, tolerance: float | None) -> bool | None:
    """Two plain numerals compare exactly; a tolerance also reaches computed values."""
    right, value = plain_number(gold), plain_number(said)
    if right is None or (value is None and not tolerance):
        return None
    if value is None:
        value = _numeric(said)
    return None if value is None else within(right, value, tolerance)


def _unwrapped(text: str) -> str:
    r"""Text commands replaced by their content, outer parentheses and final period gone."""
    text = re.sub(r"\s+", " ", _WRAPPED.sub(lambda wrapped: wrapped["inner"], text)).strip().rstrip(".").strip()
    ends = enclosed(text)
    return ends[1] if ends and ends[0] == "(" and ends[2] == ")" else text


def _words(gold: str, said: str, _: float | None) -> bool | None:
    r"""A gold that is words (``\text{Evelyn}``, ``\text{(C)}``) compares as text, never as a product of letters."""
    right, answer = _unwrapped(gold), _unwrapped(said)
    same = re.sub(r"^(?:an?|the) ", "", right.casefold()) == re.sub(r"^(?:an?|the) ", "", answer.casefold())
    if not _WRAPPED.match(gold) or not _WORDS.fullmatch(right):
        return True if same and len(right) > 1 and right.replace(" ", "").isalpha() else None
    label = _LABELLED.fullmatch(re.sub(r"\s+", " ", _WRAPPED.sub(lambda w: w["inner"], said)).strip())
    if _CHOICE.fullmatch(right) and label:
        return label[1].casefold() == right.casefold()
    return same


def _based(gold: str, said: str, _: float | None) -> bool | None:
    """``52_8``: the digits must agree, and the base where both state one."""
    right, answer = _BASED.fullmatch(_squeezed(_unwrapped(gold))), _BASED.fullmatch(_squeezed(_unwrapped(said)))
    if right and answer:
        return right.groups() == answer.groups()
    plain = _squeezed(said if right else gold)
    based = right or answer
    return based[1] == plain if based and plain.isalnum() and plain.isascii() else None


def _is_name(text: str) -> bool:
    r"""Whether text only names a quantity: ``x``, ``m_{\max}``, ``f(x)``, ``(x, y)``, ``\angle ABC``."""
    text = text.strip()
    ends = enclosed(text)
    if ends and ends[0] == "(":
        return all(_is_name(part) for part in split_top(ends[1], ","))
    return bool(_NAME.fullmatch(text)) and len(text) <= 40 and not _NOT_NAMES.search(text)


def _named(text: str) -> tuple[str, str] | None:
    """(name, value) of ``name = ... = value``, None for other equations and for anything else."""
    if _RELATION.search(text):
        return None
    sides = split_top(text, _EQUALS)
    return (sides[0], sides[-1]) if len(sides) > 1 and _is_name(sides[0]) else None


def _equations(gold: str, said: str, tolerance: float | None) -> bool | None:
    """A name on the left of ``=`` is not part of the answer, unless both sides name something different."""
    right, answer = _named(gold), _named(said)
    if right and answer:
        return _both_named(right, answer, tolerance)
    if right and len(split_top(said, _EQUALS)) == 1 and not _RELATION.search(said):
        return same(right[1], said, tolerance)
    sides = split_top(said, _EQUALS)
    if not right and len(sides) > 1 and len(split_top(gold, _EQUALS)) == 1 and not _RELATION.search(gold + said):
        return same(gold, sides[-1], tolerance)
    return None


def _both_named(right: tuple[str, str], answer: tuple[str, str], tolerance: float | None) -> bool | None:
    """``m_{\\max}=3`` equals ``m=3``; ``f(n)=n^2`` equals ``f(x)=x^2``; ``x=5`` does not equal ``y=5``."""
    left, other = _FUNCTION.fullmatch(right[0]), _FUNCTION.fullmatch(answer[0])
    if left and other:
        if left[1] != other[1]:
            return False
        if left[2] == other[2]:
            return same(right[1], answer[1], tolerance)
        return _symbolic(right[1], answer[1], (other[2], left[2]))
    if re.sub(r"\W", "", right[0])[:1] != re.sub(r"\W", "", answer[0])[:1]:
        return None
    return True if same(right[1], answer[1], tolerance) else None


def _sequences(gold: str, said: str, tolerance: float | None) -> bool | None:
    """Tuples, points, intervals and vectors: the same brackets, and the same elements in the same order."""
    if _VECTOR.fullmatch(gold) and _VECTOR.fullmatch(said):
        return None
    right, answer = _sequence(gold), _sequence(said)
    if not right or not answer:
        return None
    if (right[0], right[2], len(right[1])) != (answer[0], answer[2], len(answer[1])):
        return False
    return all(same(one, other, tolerance) for one, other in zip(right[1], answer[1], strict=True))


def _sequence(text: str) -> tuple[str, list[str], str] | None:
    """(opening, elements, closing) of brackets around several elements; a column vector is a tuple."""
    vector = _VECTOR.fullmatch(text)
    if vector:
        parts = [part.strip() for part in vector["rows"].split(r"\\") if part.strip()]
        return ("(", parts, ")") if len(parts) > 1 else None
    ends = enclosed(text)
    parts = split_top(ends[1], "[,;]") if ends else []
    return (ends[0], parts, ends[2]) if ends and len(parts) > 1 else None


def _clocks(gold: str, said: str, _: float | None) -> bool | None:
    """Times of day and ratios as written: ``05:00`` equals ``5:00``."""
    right, answer = _CLOCK.fullmatch(_squeezed(gold)), _CLOCK.fullmatch(_squeezed(said))
    if not right or not answer:
        return None
    return [int(part) for part in right.groups()] == [int(part) for part in answer.groups()]


def _unions(gold: str, said: str, tolerance: float | None) -> bool | None:
    """The same parts in any order make the same union; anything else is for math_verify, which merges intervals."""
    ours, theirs = split_top(gold, r"\\cup(?![A-Za-z])"), split_top(said, r"\\cup(?![A-Za-z])")
    return True if len(ours) > 1 and matched(ours, theirs, tolerance) else None


def _percents(gold: str, said: str, tolerance: float | None) -> bool | None:
    r"""``62.5\%`` equals ``62.5`` and ``0.625``. A bare gold below one is a proportion: there ``0.5\%`` is not 0.5."""
    right, answer = gold.removesuffix(r"\%").strip(), said.removesuffix(r"\%").strip()
    if right == gold and answer == said:
        return None
    if right != gold and answer != said:
        return same(right, answer, tolerance)
    share = rf"\frac{{{right if right != gold else answer}}}{{100}}"
    by_value = same(share, answer, None) if right != gold else same(right, share, None)
    large = right != gold or abs(_numeric(right) or 0) >= 1
    return by_value or (large and same(right, answer, tolerance))


def _approximations(gold: str, said: str, tolerance: float | None) -> bool | None:
    r"""``exact \approx decimal``: either side may be the answer that was asked for."""
    sides = split_top(said, r"\\approx(?![A-Za-z])")
    return any(same(gold, side, tolerance) for side in sides) if len(sides) > 1 and r"\approx" not in gold else None


_RULES: tuple[Rule, ...] = (
    _literal,
    _numerals,
    _words,
    _based,
    _clocks,
    _approximations,
    _equations,
    _percents,
    _sequences,
    _unions,
)


def same(gold: str, said: str, tolerance: float | None) -> bool:
    """Whether two cleaned elements are equal."""
    gold, said = strip_units(gold), strip_units(said)
    for rule in _RULES:
        verdict = rule(gold, said, tolerance)
        if verdict is not None:
            return verdict
    return _symbolic(gold, said)


def matched(ours: list[str], theirs: list[str], tolerance: float | None) -> bool:
    """Whether the elements pair off in some order. Greedy is enough: equality is transitive up to rounding."""
    if len(ours) != len(theirs):
        return False
    left = list(theirs)
    for one in ours:
        at = next((i for i, other in enumerate(left) if same(one, other, tolerance)), None)
        if at is None:
            return False
        del left[at]
    return True


def _in_order(ours: list[str], theirs: list[str], tolerance: float | None) -> bool:
    r"""A tuple for a list (``(1,3)`` for ``1,3``) or a list for a tuple: both state an order, so it must agree."""
    opened = [_round_content(side) for side in (ours, theirs)]
    if (opened[0] is None) == (opened[1] is None):
        return False
    ours, theirs = opened[0] or ours, opened[1] or theirs
    pairs = zip(ours, theirs, strict=False)
    return len(ours) == len(theirs) > 1 and all(same(one, other, tolerance) for one, other in pairs)


def _round_content(side: list[str]) -> list[str] | None:
    """The elements of a lone tuple in round brackets, also behind a name: ``(x, y) = (1, 2)``."""
    if len(side) != 1:
        return None
    named = _named(side[0])
    ends = enclosed(named[1] if named else side[0])
    if not ends or (ends[0], ends[2]) != ("(", ")"):
        return None
    return [sign for part in split_top(ends[1], "[,;]") for sign in _both_signs(part)]


# --- math_verify ------------------------------------------------------------------------------------------------


# A training batch holds many answers to the same few golds.
@lru_cache(maxsize=1000)
def _parsed(text: str) -> Any:
    """The sympy object math_verify reads, None if it reads nothing."""
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    # units=False: its unit list holds single letters, by which `6m` would become 6.
    normalization = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="last")
    config = LatexExtractionConfig(boxed_match_priority=0, normalization_config=normalization)
    # A bare `2^{1009}` parses to 2, so everything goes in a box. The parent's deadline replaces the library's timeout.
    found = parse(rf"\boxed{{{text}}}", [config], fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    return found[0] if found else None


def _numeric(text: str) -> Fraction | None:
    """A real constant's value to 30 digits, None for anything else."""
    return _value(_parsed(text))


def _value(parsed: Any) -> Fraction | None:
    """A parsed real constant's value to 30 digits, None for anything else."""
    try:
        value = parsed.doit().evalf(30)
        if not value.is_Number or not value.is_finite:
            return None
        return Fraction(str(value))
    except Exception:
        return None


def _symbolic(gold: str, said: str, arguments: tuple[str, str] | None = None) -> bool:
    """math_verify's verdict on two elements, with its rounding tightened.

    ``arguments``: (the answer's, the gold's) name of a function's argument, to rename before comparing.
    """
    from math_verify import verify

    right, answer = _parsed(gold), _parsed(said)
    if right is None or answer is None:
        return False
    if arguments:
        named = {symbol.name: symbol for symbol in answer.free_symbols | right.free_symbols}
        if arguments[1] in {symbol.name for symbol in answer.free_symbols}:
            return False
        answer = answer.subs({named[a]: named[b] for a, b in [arguments] if a in named and b in named})
    # First the cheap check: most wrong answers are constants of another value, and simplifying them is slow.
    if not _close(_value(right), _value(answer)):
        return False
    return verify([right], [answer], timeout_seconds=None, allow_set_relation_comp=True)


def _close(right: Fraction | None, answer: Fraction | None) -> bool:
    """Whether two values agree to the relative limit; not both being real constants, there is nothing to check."""
    if right is None or answer is None:
        return True
    return abs(right - answer) <= _RELATIVE_LIMIT * max(abs(right), abs(answer))


# --- whole answers ----------------------------------------------------------------------------------------------


def judge(gold: Gold, answer: str) -> bool:
    """Whether an extracted answer is right."""
    plain = decide_plain(gold, answer)
    if plain is not None:
        return plain
    right, said = clean(gold.answer), clean(answer)
    if not right or not said:
        return False
    if _literal(right, said, None):
        return True
    unit = clean(gold.unit) if gold.unit else None
    right, said = strip_units(right, unit), strip_units(said, unit)
    # Set braces say that there is no order, so a set and a tuple differ.
    ordered = r"\{" not in right + said
    return any(
        matched(ours, theirs, gold.tolerance) or (ordered and _in_order(ours, theirs, gold.tolerance))
        for ours in readings(right, listed=gold.multiple)
        for theirs in readings(said, listed=False)
    )


# --- the process ------------------------------------------------------------------------------------------------


def _limit_memory() -> None:
    """Make a runaway computation fail instead of filling the machine."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MEMORY_LIMIT if hard == resource.RLIM_INFINITY else min(_MEMORY_LIMIT, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _reply(request: dict[str, Any]) -> dict[str, Any]:
    """The verdict on one request. An answer that breaks the algebra is not a right answer."""
    # The default action of SIGALRM kills the process even inside C code: a hanging orphan ends by itself.
    signal.alarm(math.ceil(request["deadline_s"]) + 5)
    try:
        return {"correct": bool(judge(Gold(**request["gold"]), request["answer"]))}
    except Exception:
        return {"correct": False}
    finally:
        signal.alarm(0)


def main() -> None:
    """Serve requests until stdin closes."""
    # Replies own the real stdout; whatever a library prints goes to stderr.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _limit_memory()
    try:
        import math_verify  # noqa: F401
    except Exception as error:
        print(json.dumps({"ready": False, "error": f"{type(error).__name__}: {error}"}), file=replies, flush=True)
        return
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(_reply(json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main()
