"""Units: takes them off an answer, and compares them if both sides state one."""

from __future__ import annotations

import re
from fractions import Fraction

from orchestrator.grading.spelling import CURRENCY, TEXT

_WORD_UNITS = (
    "degrees?|deg|radians?|rad|units?|inch(?:es)?|in|feet|foot|ft|yards?|yd|miles?|mi|mm|cm|dm|km|meters?|metres?|"
    "kilometers?|kilometres?|centimeters?|centimetres?|seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|weeks?|months?|"
    "years?|kg|kilograms?|grams?|mg|lbs?|pounds?|ounces?|oz|tons?|liters?|litres?|ml|gallons?|cents?|dollars?|euros?|"
    "mph|kmh|kph|acres?|people|students?|ways?|USD"
)
_POWER = r"(?:\s*\^\s*(?:\{\s*[23]\s*\}|[23]))?"
# A bare word is a unit only straight after a digit or a closing brace (never `2 ab`), and only from
# this list.
_BARE_UNIT = re.compile(
    rf"(?<=[\d}})])\s*(?:(?:square|cubic|sq\.?|cu\.?)\s+)?(?:{_WORD_UNITS}){_POWER}"
    rf"(?:\s*(?:/|per)\s*(?:{_WORD_UNITS}|h|s){_POWER})?$|(?<=\d)\s*[mg]\s*/\s*(?:s|h|min|mL|L){_POWER}$"
)
# Long words after a space count things; the names of functions and letters stay.
_COUNTED = re.compile(
    r"(?<=[\d}])\s+(?!\S*(?:sqrt|frac|pi\b|sin|cos|tan|log|choose|mod\b|theta|alpha|beta|infty))"
    r"(?:[A-Za-z]{4,}|(?:a|an|per|each)\s+[a-z]{2,})(?:\s+[A-Za-z]{2,})*$"
)
_TEXT_UNIT = re.compile(
    rf"\s*(?:{TEXT}\s*\{{(?P<word>[^{{}}]*)\}}{_POWER}|\\frac\s*\{{\s*{TEXT}\s*\{{[^{{}}]*\}}{_POWER}\s*\}}"
    rf"\s*\{{\s*{TEXT}\s*\{{[^{{}}]*\}}{_POWER}\s*\}})\s*$"
)
# `cm^2` inside one text command.
_POWER_IN_TEXT = re.compile(rf"({TEXT}\s*\{{[^{{}}^]*)\^\s*(\{{[23]\}}|[23])\s*\}}$")
# Words that change the value or are symbols themselves.
_NOT_UNITS = re.compile(
    r"\d|[+*=<>]|^\W*(?:i|e|d|T|C|P|am|pm|a\.?\s*m\.?|p\.?\s*m\.?|bc|ad)\W*$|^\W*(?:if|for|where|when|with|mod)\b|"
    r"\b(?:hundred|thousand|million|billion|trillion|dozen|infinity|base|to|than|or|not|no|all|except)\b",
    re.IGNORECASE,
)
_ENDS_OPEN = re.compile(r"(?:[-+*/=<>^_,(\[{]|\\(?:cdot|times|le|ge|in|cup|pm|frac|sqrt))$")
_LEADING_TEXT = re.compile(
    rf"^{TEXT}\s*\{{(?P<words>[^{{}}]*[a-z][^{{}}]*)\}}\s*[:=]?\s*(?=[-+]?[\d.]|\\frac|\\sqrt|[-+]?\\pi)"
)
_LABEL = re.compile(
    rf"^(?:{TEXT}\s*\{{\s*\(?([A-F])\)?[.:]?\s*\}}|\(([A-F])\))\s*(?=[-+]?[\d.]|\\frac|\\sqrt|[-+]?\\pi)"
)

# Name → (dimension, size in the dimension's smallest unit here): `cm` is ("length", 10), as it has
# ten millimeters.
_SIZES: dict[str, tuple[str, Fraction]] = {
    name: (dimension, Fraction(size))
    for dimension, units in {
        "length": {
            "mm|millimeter|millimetre": "1", "cm|centimeter|centimetre": "10", "m|meter|metre": "1000",
            "km|kilometer|kilometre": "1000000", "in|inch": "25.4", "ft|foot|feet": "304.8", "yd|yard": "914.4",
            "mi|mile": "1609344",
        },
        "time": {"s|sec|second": "1", "min|minute": "60", "h|hr|hour": "3600", "day": "86400", "week": "604800"},
        "money": {"cent": "1", "dollar|$": "100"},
        "mass": {"g|gram": "1", "kg|kilogram": "1000"},
        "weight": {"oz|ounce": "1", "lb|pound": "16"},
    }.items()
    for names, size in units.items()
    for name in names.split("|")
}  # fmt: skip
_STATED = re.compile(
    rf".*[\d}})](?:\s|\\[,;! ]|~)*"
    rf"(?:{TEXT}\s*\{{(?:\s|\\ |~)*(?P<text>[A-Za-z]+)\s*\}}|(?P<bare>[A-Za-z]{{2,}}))\s*\.?",
    re.DOTALL,
)
_IN_DEGREES = re.compile(r"[\d}]\s*(?:\^\s*\{?\s*\\circ|°|\\degree)[\s}.$]*$")
_PI = re.compile(r"\\pi(?![A-Za-z])|π")
_DOLLARS = re.compile(rf"\s*(?:{CURRENCY.pattern})\s*[\d.,\\!{{}}]+")


def strip_units(text: str, stated: str | None = None) -> str:
    r"""The spelled answer without trailing units: ``864`` of ``864 \text{ inches}^2``.

    ``stated`` is the benchmark's unit, and is always taken off. A text after an operator or an
    opening bracket stays, since the answer cannot end there.
    """
    if stated and text.endswith(stated) and text[: -len(stated)].strip():
        text = text[: -len(stated)].strip()
    text = _POWER_IN_TEXT.sub(r"\1}^\2", text)
    for _ in range(3):
        match = _TEXT_UNIT.search(text)
        if match is None or (match["word"] and _NOT_UNITS.search(match["word"])):
            match = _BARE_UNIT.search(text) or _counted(text)
        rest = text[: match.start()].rstrip() if match else ""
        if not rest or _ENDS_OPEN.search(rest):
            break
        text = rest
    return text


def strip_introduction(text: str) -> str:
    """The spelled answer without words (``Area: ``) or the letter of a choice before a number."""
    words = _LEADING_TEXT.match(text)
    if words and not _NOT_UNITS.search(words["words"]):
        text = text[words.end() :]
    return _LABEL.sub("", text)


def _counted(text: str) -> re.Match[str] | None:
    """A trailing noun such as `apples`."""
    match = _COUNTED.search(text)
    return None if match is None or _NOT_UNITS.search(match[0].strip()) else match


def _stated_unit(text: str) -> tuple[str, Fraction] | None:
    """(dimension, size) of the one simple unit an answer as written ends in, or of its dollar sign."""
    match = _STATED.fullmatch(text.strip().strip("$"))
    if match:
        name = (match["text"] or match["bare"]).lower()
        singular = _SIZES.get(name.removesuffix("s")) or _SIZES.get(name.removesuffix("es"))
        return _SIZES.get(name) or singular
    return _SIZES["$"] if _DOLLARS.fullmatch(text) else None


def unit_ratio(gold: str, answer: str, stated: str | None = None) -> Fraction | None:
    """Factor from an answer's number to the gold's unit; 1 if either states no unit.

    Dollars for a gold in cents give 100. None means that the units measure different things. Both
    texts are as written; ``stated`` is the gold's unit if the benchmark states it apart.
    """
    gold_unit = _stated_unit(rf"1\text{{{stated}}}" if stated else gold)
    answer_unit = _stated_unit(answer)
    if gold_unit is None or answer_unit is None:
        return Fraction(1)
    (gold_dimension, gold_size), (answer_dimension, answer_size) = gold_unit, answer_unit
    return answer_size / gold_size if gold_dimension == answer_dimension else None


def angle_factor(gold: str, answer: str) -> str | None:
    r"""LaTeX factor from the answer's angle to the gold's, if one is in degrees, the other in π."""
    gold_in_degrees = bool(_IN_DEGREES.search(gold))
    answer_in_degrees = bool(_IN_DEGREES.search(answer))
    gold_has_pi = bool(_PI.search(gold))
    answer_has_pi = bool(_PI.search(answer))
    if gold_in_degrees and not gold_has_pi and answer_has_pi and not answer_in_degrees:
        return r"\frac{180}{\pi}"
    if gold_has_pi and not gold_in_degrees and answer_in_degrees and not answer_has_pi:
        return r"\frac{\pi}{180}"
    return None
