r"""Decides whether an extracted answer equals a gold answer, as a careful reader would.

Both sides are brought to one spelling (`notation`), and units are compared and taken off
(`meanings`). The rest is read as a list of elements (`notation`), which are matched one to one in
free order; a bracketed tuple keeps its order. Two elements are compared by the `_RULES` in turn.
The first rule with an opinion decides, True or False; a rule that does not concern the elements
returns None. If no rule decides, the elements are compared as algebra (`algebra.equal`).

The order of the rules matters: a rule may rely on earlier ones, and cheap or certain rules come
first. The cases behind each rule are in `tests/grading/verdicts.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import chain

from orchestrator.grading.algebra import equal, numeric, same_family
from orchestrator.grading.gold import Gold, decide_plain, plain_number, within
from orchestrator.grading.meanings import (
    angle_factor,
    same_clock,
    same_in_base,
    same_letters,
    same_real_set,
    same_words,
    strip_introduction,
    strip_units,
    unit_ratio,
)
from orchestrator.grading.notation import (
    EQUALS,
    RELATION,
    both_signs,
    enclosed,
    listed,
    named,
    readings,
    spelled,
    split_top,
)

# A rounded decimal of a value such as 1/3 counts from this many digits on, if they are all right.
_ENOUGH_DIGITS = 6

Rule = Callable[[str, str, float | None], bool | None]

_VECTOR = re.compile(r"\\begin\{pmatrix\}(?P<rows>[^&]*)\\end\{pmatrix\}")
_FUNCTION = re.compile(r"([A-Za-z])\s*\(\s*([A-Za-z])\s*\)")
_APPROX = r"\\approx(?![A-Za-z])"
_DECIMAL = re.compile(r"-?(\d*)\.(\d+)")


# --- rules for two elements ---


def _decimals(gold: str, answer: str, tolerance: float | None) -> bool | None:
    """Compare a plain decimal with anything that has a value: exactly, or within the tolerance.

    An answer may also be rounded from an exact gold, `0.333333` from 1/3. A rounded gold would
    accept answers that are wrong.
    """
    plain_gold, plain_answer = plain_number(gold), plain_number(answer)
    if plain_gold is not None and plain_answer is not None:
        return within(plain_gold, plain_answer, tolerance)
    if plain_gold is not None:
        value = numeric(answer)
        return None if value is None else within(plain_gold, value, tolerance)
    if plain_answer is None:
        return None
    exact = numeric(gold)
    if exact is None:
        return None
    if within(exact, plain_answer, tolerance):
        return True
    # A value that ends within ten digits has to be written out, not rounded.
    endless = (exact * 10**10).denominator > 1
    return endless and _rounds_to(exact, answer, _ENOUGH_DIGITS)


def _rounds_to(exact: Fraction, decimal: str, least_digits: int) -> bool:
    """Whether a decimal is an exact value, rounded or cut off at its last digit.

    It needs `least_digits` decimals and as many significant digits: `0.000067` states two of them.
    """
    match = _DECIMAL.fullmatch(decimal.strip())
    if match is None:
        return False
    decimals = len(match[2])
    significant = len((match[1] + match[2]).lstrip("0"))
    if min(decimals, significant) < least_digits:
        return False
    error = Fraction(decimal) - exact
    last_digit = Fraction(1, 10**decimals)
    # A cut-off value lies nearer to zero than the exact one.
    cut_off = abs(error) < last_digit and (error < 0) == (exact > 0)
    return abs(error) <= last_digit / 2 or cut_off


def _equations(gold: str, answer: str, tolerance: float | None) -> bool | None:
    """Ignore a name on one side of `=`, unless both sides name something different.

    `x=5` equals 5, and the derivation `12+12=24` equals 24: an answer's chain ends in its value. An
    equation that gives no name a value, such as `2x-y+3=0`, is left to the algebra.
    """
    named_gold, named_answer = named(gold), named(answer)
    if named_gold and named_answer:
        return _both_named(named_gold, named_answer, tolerance)
    gold_sides, answer_sides = split_top(gold, EQUALS), split_top(answer, EQUALS)
    if named_gold and len(answer_sides) == 1 and not RELATION.search(answer):
        return same(named_gold[1], answer, tolerance)
    if named_gold or len(gold_sides) == len(answer_sides) == 1 or RELATION.search(gold + answer):
        return None
    if len(gold_sides) == 1:
        return same(gold, named_answer[1] if named_answer else answer_sides[-1], tolerance)
    # `0.56 = 56\%`: a gold in two spellings of one constant; the answer may be either.
    if any(numeric(side.replace(r"\%", "")) is None for side in gold_sides + answer_sides):
        return None
    return any(same(side, answer_sides[-1], tolerance) for side in gold_sides)


def _both_named(
    gold: tuple[str, str], answer: tuple[str, str], tolerance: float | None
) -> bool | None:
    r"""Compare two (name, value), such as ``m_{\max}=3`` and ``m=3``, ``f(n)=n^2`` and ``f(x)=x^2``.

    ``x=5`` and ``y=5`` differ. A part of a name, or its letters in another order, may mean the same
    thing or not: if the values differ as well, the algebra has the last word.
    """
    gold_function, answer_function = _FUNCTION.fullmatch(gold[0]), _FUNCTION.fullmatch(answer[0])
    if gold_function and answer_function:
        if gold_function[1] != answer_function[1]:
            return False
        if gold_function[2] == answer_function[2]:
            return same(gold[1], answer[1], tolerance)
        return equal(gold[1], answer[1], rename=(answer_function[2], gold_function[2]))
    gold_name, answer_name = _bare_name(gold[0]), _bare_name(answer[0])
    if gold_name == answer_name:
        return same(gold[1], answer[1], tolerance)
    one_is_short = gold_name.startswith(answer_name) or answer_name.startswith(gold_name)
    if not one_is_short and sorted(gold_name) != sorted(answer_name):
        return None
    return True if same(gold[1], answer[1], tolerance) else None


def _bare_name(name: str) -> str:
    return re.sub(r"\\(?:mathrm|text|operatorname)|\W|_", "", name)


def _sequences(gold: str, answer: str, tolerance: float | None) -> bool | None:
    """Compare tuples, points, intervals and vectors: brackets, and elements in their order."""
    if _VECTOR.fullmatch(gold) and _VECTOR.fullmatch(answer):
        return None  # both are matrices to the algebra
    gold_sequence, answer_sequence = _sequence(gold), _sequence(answer)
    if gold_sequence and not answer_sequence and "matrix" not in gold + answer:
        return None if named(answer) or RELATION.search(answer) else False
    if not gold_sequence or not answer_sequence:
        return None
    gold_opening, gold_elements, gold_closing = gold_sequence
    answer_opening, answer_elements, answer_closing = answer_sequence
    if (gold_opening, gold_closing) != (answer_opening, answer_closing):
        return False
    return _same_elements(gold_elements, answer_elements, tolerance)


def _same_elements(golds: list[str], answers: list[str], tolerance: float | None) -> bool:
    """Whether as many elements are equal, in the same order."""
    if len(golds) != len(answers):
        return False
    return all(same(*pair, tolerance) for pair in zip(golds, answers, strict=True))


def _sequence(text: str) -> tuple[str, list[str], str] | None:
    """(opening, elements, closing) of brackets around several elements; a column vector is a tuple."""
    vector = _VECTOR.fullmatch(text)
    if vector:
        rows = [row.strip() for row in vector["rows"].split(r"\\") if row.strip()]
        return ("(", rows, ")") if len(rows) > 1 else None
    brackets = enclosed(text)
    if not brackets:
        return None
    opening, content, closing = brackets
    parts = split_top(content, "[,;]")
    return (opening, parts, closing) if len(parts) > 1 else None


def _percents(gold: str, answer: str, tolerance: float | None) -> bool | None:
    r"""Accept ``62.5\%`` for ``62.5`` and ``0.625``; for a gold below one, a proportion, only so."""
    bare_gold, bare_answer = gold.removesuffix(r"\%").strip(), answer.removesuffix(r"\%").strip()
    gold_has_sign, answer_has_sign = bare_gold != gold, bare_answer != answer
    if not (gold_has_sign or answer_has_sign) or "=" in gold + answer:
        return None
    if gold_has_sign and answer_has_sign:
        return same(bare_gold, bare_answer, tolerance)
    if gold_has_sign:
        as_fraction = rf"\frac{{{bare_gold}}}{{100}}"
        return same(as_fraction, answer, None) or same(bare_gold, bare_answer, tolerance)
    by_value = same(gold, rf"\frac{{{bare_answer}}}{{100}}", None)
    is_proportion = abs(numeric(gold) or 0) < 1
    return by_value or (not is_proportion and same(gold, bare_answer, tolerance))


def _approximations(gold: str, answer: str, tolerance: float | None) -> bool | None:
    r"""Compare ``exact \approx decimal``: either side may be the answer that the question wants.

    A gold that is itself stated as rounded, ``\approx 8.24``, accepts values that round to it, such
    as ``8.241``.
    """
    gold_sides, answer_sides = split_top(gold, _APPROX), split_top(answer, _APPROX)
    if len(answer_sides) > 1:
        return any(same(gold, side, tolerance) for side in answer_sides)
    rounded = gold.startswith(r"\approx")
    if len(gold_sides) == 1 and not rounded:
        if answer.startswith(r"\approx") and answer_sides:
            return same(gold, answer_sides[0], tolerance)
        return None
    if any(same(side, answer_sides[0], tolerance) for side in gold_sides):
        return True
    value = numeric(answer_sides[0])
    return rounded and value is not None and _rounds_to(value, gold_sides[0], 1)


_RULES: tuple[Rule, ...] = (
    same_letters,  # certain, and spares the other rules
    _approximations,
    _percents,
    _decimals,
    same_words,
    same_in_base,  # to the algebra `52_8` would be a symbol
    same_clock,
    _equations,
    _sequences,
    lambda gold, answer, _: same_family(gold, answer),
)


def same(gold: str, answer: str, tolerance: float | None) -> bool:
    """Whether two spelled elements are equal."""
    gold, answer = strip_units(gold), strip_units(answer)
    for rule in _RULES:
        verdict = rule(gold, answer, tolerance)
        if verdict is not None:
            return verdict
    return equal(gold, answer)


# --- lists of elements ---


def _matched(golds: list[str], answers: list[str], tolerance: float | None) -> bool:
    """Whether the elements pair off in some order."""
    if len(golds) != len(answers):
        return False
    # Taking the first match is enough, since equality is transitive up to rounding.
    unmatched = list(answers)
    for gold in golds:
        for at, answer in enumerate(unmatched):
            if same(gold, answer, tolerance):
                del unmatched[at]
                break
        else:
            return False
    return True


def _in_order(golds: list[str], answers: list[str], tolerance: float | None) -> bool:
    r"""Compare a tuple with a list (``(1,3)`` and ``1,3``): both state an order, so it must agree."""
    gold_tuple, answer_tuple = _tuple_content(golds), _tuple_content(answers)
    if (gold_tuple is None) == (answer_tuple is None):
        return False
    golds = gold_tuple or _by_name(golds)
    answers = answer_tuple or _by_name(answers)
    return len(golds) > 1 and _same_elements(golds, answers, tolerance)


def _by_name(elements: list[str]) -> list[str]:
    """Sort `y=2, x=1` by its one-letter names, as coordinates of a tuple; leave others alone."""
    by_name: dict[str, str] = {}
    for element in elements:
        name_and_value = named(element)
        if not name_and_value or not re.fullmatch("[A-Za-z]", name_and_value[0]):
            return elements
        by_name[name_and_value[0]] = element
    if len(by_name) < len(elements):
        return elements
    # In space-time coordinates w comes last.
    order = sorted(by_name, key=lambda name: (name == "w" and "z" in by_name, name))
    return [by_name[name] for name in order]


def _tuple_content(elements: list[str]) -> list[str] | None:
    """The elements of a lone tuple in round brackets, also behind a name: ``(x, y) = (1, 2)``."""
    if len(elements) != 1:
        return None
    name_and_value = named(elements[0])
    brackets = enclosed(name_and_value[1] if name_and_value else elements[0])
    if not brackets or (brackets[0], brackets[2]) != ("(", ")"):
        return None
    return list(chain.from_iterable(map(both_signs, split_top(brackets[1], "[,;]"))))


def _repeated(golds: list[str], answers: list[str], tolerance: float | None) -> bool:
    r"""Accept one answer in several spellings, ``\frac{1}{2}, 0.5``, if each of them is right."""
    return len(golds) == 1 < len(answers) <= 3 and all(
        same(golds[0], answer, tolerance) for answer in answers
    )


# --- whole answers ---


def judge(gold: Gold, answer: str) -> bool:
    """Whether an extracted answer is right.

    `grader` decides the cases without algebra before: no box, an answer that is too long, plain
    numerals.
    """
    plain = decide_plain(gold, answer)
    if plain is not None:
        return plain
    gold_text, answer_text = spelled(gold.answer), spelled(answer)
    if not gold_text or not answer_text:
        return False
    if same_letters(gold_text, answer_text, None):
        return True
    # Units are compared as they were written: spelling drops currencies and degree signs.
    unit = spelled(gold.unit) if gold.unit else None
    ratio = unit_ratio(gold.answer, answer, gold.unit)
    if ratio is None:
        return False
    gold_text, answer_text = strip_units(gold_text, unit), strip_units(answer_text, unit)
    if re.search(r"\d|\\pi", gold_text):
        answer_text = strip_introduction(answer_text)
    if (angle := angle_factor(gold.answer, answer)) is not None:
        answer_text = rf"{angle}\cdot({answer_text})"
    if ratio != 1:
        answer_text = rf"\frac{{{ratio.numerator}}}{{{ratio.denominator}}}\cdot({answer_text})"
    # Sets of reals come before lists, because their commas and "or" are no separators: `x<2 or
    # x>3`.
    as_sets = None if gold.multiple else same_real_set(gold_text, answer_text)
    if as_sets is not None:
        return as_sets
    return _as_lists(gold, listed(gold_text), listed(answer_text))


def _as_lists(gold: Gold, gold_text: str, answer_text: str) -> bool:
    """Whether the elements agree in some reading of both sides."""
    # Set braces mean free order, so a set and a tuple differ.
    ordered = r"\{" not in gold_text + answer_text
    for golds in readings(gold_text, is_list=gold.multiple):
        for answers in readings(answer_text, is_list=False):
            if _matched(golds, answers, gold.tolerance):
                return True
            if ordered and _in_order(golds, answers, gold.tolerance):
                return True
            if ordered and not gold.multiple and _repeated(golds, answers, gold.tolerance):
                return True
    return False
