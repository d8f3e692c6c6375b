r"""Compares answers that are not algebra: words, choices, numerals in a base, times, units, sets."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from orchestrator.grading.algebra import real_constant
from orchestrator.grading.notation import CURRENCY, TEXT, enclosed, is_name, named, split_top

# --- words, choices, numerals in a base, times, ratios ---


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


# --- units: taken off an answer, and compared if both sides state one ---


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


# --- sets of real numbers in any notation: `(2,5]`, `2 < x \le 5`, `\{x : x > 2\}` ---


_OR = rf"\\(?:cup|lor|vee)(?![A-Za-z])|{TEXT}\s*\{{\s*,?\s*or\s*\}}|\bor\b"
_AND = rf"\\(?:land|wedge)(?![A-Za-z])|{TEXT}\s*\{{\s*,?\s*(?:and|but|with)\s*\}}|\b(?:and|but)\b|,"
_RELATION = re.compile(r"(<|>|\\(?:le|ge|ne)(?![A-Za-z]))")
_MEMBER = re.compile(
    r"(?P<name>[^=<>]*?)\s*(?:\\in(?![A-Za-z])|=)\s*(?=[\[\](\\])(?P<set>.*)", re.DOTALL
)
# A name straight before a half-open interval has lost its \in: the brackets can't be a product.
_LOST_IN = re.compile(r"(?P<name>[a-z])\s*(?P<set>\([^()\[\]]*\]|\[[^()\[\]]*\))")
_SUCH_THAT = rf":|\\(?:mid|vert)(?![A-Za-z])|\||{TEXT}\s*\{{\s*such that\s*\}}"
_REALS = re.compile(
    rf"\\mathbb\s*\{{R\}}|(?:{TEXT}\s*\{{)?\s*all\s+(?:the\s+)?real\s+(?:numbers|values)(?:\s+of\s+\$?[a-z]\$?)?\s*\}}?",
    re.IGNORECASE,
)
_EXCEPT = re.compile(
    r"\s*(?:\\setminus(?![A-Za-z])|\\backslash(?![A-Za-z])|-|"
    rf"(?:{TEXT}\s*\{{)?\s*(?:except|but|other than)(?:\s+for)?\s*\}}?)"
)
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\ne": r"\ne"}
# Signs that make a text worth parsing as a set of reals.
_ONLY_IN_SETS = re.compile(r"[<>\[\]]|\\(?:le|ge|ne|cup|infty|mathbb)(?![A-Za-z])|\breal\b")
_INTERVAL = re.compile(r"(?P<open>[(\[\]])(?P<low>.*),(?P<high>.*)(?P<close>[)\]\[])", re.DOTALL)


def real_set(text: str) -> Any:
    """The sympy set of reals that a spelled answer describes; None unless its ends are constants."""
    text = text.strip()
    brackets = enclosed(text)
    if brackets and brackets[0] == "\\{":
        # `\{x \in \mathbb{R} : x > 2\}` is given by its condition.
        halves = split_top(brackets[1], _SUCH_THAT)
        if len(halves) == 2 and is_name(halves[0].split(r"\in")[0]):
            return real_set(halves[1])
    member = _MEMBER.fullmatch(text) or _LOST_IN.fullmatch(text)
    if member and is_name(member["name"]):
        return real_set(member["set"])
    return _union(text)


def _union(text: str) -> Any:
    """Unite parts joined by "or". "And" and the comma intersect relations, and unite intervals."""
    from sympy import Intersection, Union

    parts = []
    for part in split_top(text, _OR):
        sets = [_simple(condition) for condition in split_top(part, _AND)]
        if not sets or any(condition is None for condition in sets):
            return None
        parts.append(Intersection(*sets) if _RELATION.search(part) else Union(*sets))
    return Union(*parts) if parts else None


def _simple(text: str) -> Any:
    """One interval, one chain of relations, a finite set in braces, or the reals with exceptions."""
    from sympy import Complement, FiniteSet, Reals

    if _RELATION.search(text):
        return _chain([piece.strip() for piece in _RELATION.split(text)])
    reals = _REALS.match(text)
    if reals:
        exception = _EXCEPT.match(text, reals.end())
        if not exception:
            return Reals if not text[reals.end() :].strip() else None
        left_out = text[exception.end() :].strip()
        brackets = enclosed(left_out)
        points = []
        for part in split_top(brackets[1] if brackets else left_out, _AND):
            name_and_value = named(part)  # `except x = 3` as well as `except 3`
            points.append(real_constant(name_and_value[1] if name_and_value else part))
        return None if not points or None in points else Complement(Reals, FiniteSet(*points))
    brackets = enclosed(text)
    if brackets and brackets[0] == "\\{":
        points = [real_constant(part) for part in split_top(brackets[1], ",")]
        return None if not points or None in points else FiniteSet(*points)
    name_and_value = named(text)
    if name_and_value is not None and (point := real_constant(name_and_value[1])) is not None:
        return FiniteSet(point)
    return _interval(text)


def _interval(text: str) -> Any:
    """Parse ``(a,b]`` and its kin, also with the outward brackets of ``]a,b[``."""
    from sympy import Interval

    match = _INTERVAL.fullmatch(text)
    if match is None or len(split_top(text[1:-1], ",")) != 2:
        return None
    low, high = _end(match["low"]), _end(match["high"])
    if low is None or high is None or not (low < high):
        return None
    return Interval(low, high, match["open"] != "[", match["close"] != "]")


def _chain(pieces: list[str]) -> Any:
    """Parse ``a < x``, ``x < a``, ``a < x < b`` or ``|x| < a`` with constants.

    Pieces alternate with relations: `["a", "<", "x"]`.
    """
    from sympy import Complement, FiniteSet, Intersection, Reals, Union

    if len(pieces) == 3 and not is_name(pieces[0]):
        pieces = [pieces[2], _FLIPPED[pieces[1]], pieces[0]]
    if len(pieces) == 5:
        lower = _chain(pieces[:3])
        upper = _chain(pieces[2:])
        return None if lower is None or upper is None else Intersection(lower, upper)
    end = _end(pieces[2]) if len(pieces) == 3 else None
    if end is None:
        return None
    size = re.fullmatch(r"\|([^|]*)\|", pieces[0])
    if size and is_name(size[1]) and end > 0:
        # |x| < a is x < a and x > −a; |x| > a is x > a or x < −a.
        by_plus = _half_line(pieces[1], end)
        by_minus = _half_line(_FLIPPED[pieces[1]], -end)
        within = pieces[1] in ("<", r"\le")
        return Intersection(by_plus, by_minus) if within else Union(by_plus, by_minus)
    if size or not is_name(pieces[0]):
        return None
    if pieces[1] == r"\ne":
        return Complement(Reals, FiniteSet(end))
    return _half_line(pieces[1], end)


def _half_line(relation: str, end: Any) -> Any:
    """The numbers x of ``x <relation> end``, one of < ≤ > ≥."""
    from sympy import Interval, oo

    if relation in ("<", r"\le"):
        return Interval(-oo, end, True, relation == "<")
    return Interval(end, oo, relation == ">", True)


def _end(text: str) -> Any:
    """An end of an interval: a real constant or an infinity; None for anything else."""
    from sympy import oo

    plain = text.replace(" ", "")
    if plain in (r"\infty", r"-\infty"):
        return oo if plain[0] != "-" else -oo
    return real_constant(text)


def same_real_set(gold: str, answer: str) -> bool | None:
    """Whether two spelled answers describe the same set of reals; None if one may be another thing.

    ``(2,4)`` is a point as well as an interval, so other rules compare two such pairs; likewise
    finite sets.
    """
    from sympy import EmptySet, FiniteSet

    if _in_round_brackets(gold) and _in_round_brackets(answer):
        return None
    if not _ONLY_IN_SETS.search(gold + answer):
        return None
    gold_set = real_set(gold)
    if gold_set is None or isinstance(gold_set, FiniteSet):
        return None
    answer_set = real_set(answer)
    if answer_set is None:
        return None
    return (gold_set - answer_set) == EmptySet and (answer_set - gold_set) == EmptySet


def _in_round_brackets(text: str) -> bool:
    brackets = enclosed(text)
    return brackets is not None and (brackets[0], brackets[2]) == ("(", ")")
