r"""Whether an extracted answer equals a gold answer, as a careful reader would say.

Both sides are spelled alike (:mod:`answer_spelling`), read as lists of elements (:mod:`answer_parts`), and the elements
are matched one to one in free order (a bracketed tuple keeps its order). Two elements are compared by the ``_RULES`` in
turn: the first that has an opinion decides, and :mod:`algebra` has the last word.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from orchestrator.grading.algebra import equal, numeric, same_family
from orchestrator.grading.gold import Gold, decide_plain, plain_number, within
from orchestrator.grading.measures import angle_factor, strip_introduction, strip_units, unit_ratio
from orchestrator.grading.sets import same_real_set
from orchestrator.grading.spelling import listed, spelled
from orchestrator.grading.structure import EQUALS, RELATION, both_signs, enclosed, named, readings, split_top
from orchestrator.grading.words import same_clock, same_in_base, same_letters, same_words

# A decimal for a value that has none counts from this many digits on, if they are all right.
_ENOUGH_DIGITS = 6

Rule = Callable[[str, str, float | None], bool | None]

_VECTOR = re.compile(r"\\begin\{pmatrix\}(?P<rows>[^&]*)\\end\{pmatrix\}")
_FUNCTION = re.compile(r"([A-Za-z])\s*\(\s*([A-Za-z])\s*\)")
_APPROX = r"\\approx(?![A-Za-z])"
_DECIMAL = re.compile(r"-?(\d*)\.(\d+)")


# --- rules for two elements ---


def _decimals(gold: str, said: str, tolerance: float | None) -> bool | None:
    """A plain decimal against anything with a value: exact, within the tolerance, or rounded from an exact gold."""
    right, value = plain_number(gold), plain_number(said)
    if right is not None and value is not None:
        return within(right, value, tolerance)
    if right is None and value is None:
        return None
    exact = numeric(said if value is None else gold)
    if exact is None:
        return None
    if within(exact if right is None else right, exact if value is None else value, tolerance):
        return True
    # A value that ends within ten digits is written out, not rounded.
    endless = (exact * 10**10).denominator > 1
    return value is not None and endless and _rounds_to(exact, said, _ENOUGH_DIGITS)


def _rounds_to(exact: Fraction, decimal: str, least_digits: int) -> bool:
    """Whether a decimal is an exact value rounded or cut off at its last digit, which comes late enough."""
    match = _DECIMAL.fullmatch(decimal.strip())
    if match is None or min(len(match[2]), len((match[1] + match[2]).lstrip("0"))) < least_digits:
        return False
    error, unit = Fraction(decimal) - exact, Fraction(1, 10 ** len(match[2]))
    cut_off = abs(error) < unit and (error < 0) == (exact > 0)
    return abs(error) <= unit / 2 or cut_off


def _equations(gold: str, said: str, tolerance: float | None) -> bool | None:
    """A name on one side of ``=`` is not part of the answer, unless both sides name something different."""
    right, answer = named(gold), named(said)
    if right and answer:
        return _both_named(right, answer, tolerance)
    sides = split_top(said, EQUALS)
    if right and len(sides) == 1 and not RELATION.search(said):
        return same(right[1], said, tolerance)
    ours = split_top(gold, EQUALS)
    if right or len(ours) == len(sides) == 1 or RELATION.search(gold + said):
        return None
    if len(ours) == 1:
        return same(gold, answer[1] if answer else sides[-1], tolerance)
    # `0.56 = 56\%`: a gold in two spellings.
    constant = all(numeric(side.replace(r"\%", "")) is not None for side in ours + sides)
    return any(same(one, sides[-1], tolerance) for one in ours) if constant else None


def _both_named(right: tuple[str, str], answer: tuple[str, str], tolerance: float | None) -> bool | None:
    """``m_{\\max}=3`` equals ``m=3``; ``f(n)=n^2`` equals ``f(x)=x^2``; ``x=5`` does not equal ``y=5``."""
    left, other = _FUNCTION.fullmatch(right[0]), _FUNCTION.fullmatch(answer[0])
    if left and other:
        if left[1] != other[1]:
            return False
        if left[2] == other[2]:
            return same(right[1], answer[1], tolerance)
        return equal(right[1], answer[1], rename=(other[2], left[2]))
    ours, theirs = (re.sub(r"\\(?:mathrm|text|operatorname)|\W|_", "", name) for name in (right[0], answer[0]))
    if ours == theirs:
        return same(right[1], answer[1], tolerance)
    if not (ours.startswith(theirs) or theirs.startswith(ours) or sorted(ours) == sorted(theirs)):
        return None
    return True if same(right[1], answer[1], tolerance) else None


def _sequences(gold: str, said: str, tolerance: float | None) -> bool | None:
    """Tuples, points, intervals and vectors: the same brackets, and the same elements in the same order."""
    if _VECTOR.fullmatch(gold) and _VECTOR.fullmatch(said):
        return None
    right, answer = _sequence(gold), _sequence(said)
    if right and not answer and "matrix" not in gold + said:
        return None if named(said) or RELATION.search(said) else False
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


def _unions(gold: str, said: str, tolerance: float | None) -> bool | None:
    """The same parts in any order make the same union, also with ends that are no constants."""
    ours, theirs = split_top(gold, r"\\cup(?![A-Za-z])"), split_top(said, r"\\cup(?![A-Za-z])")
    return True if len(ours) > 1 and matched(ours, theirs, tolerance) else None


def _percents(gold: str, said: str, tolerance: float | None) -> bool | None:
    r"""``62.5\%`` equals ``62.5`` and ``0.625``. A bare gold below one is a proportion: there ``0.5\%`` is not 0.5."""
    right, answer = gold.removesuffix(r"\%").strip(), said.removesuffix(r"\%").strip()
    if (right == gold and answer == said) or "=" in gold + said:
        return None
    if right != gold and answer != said:
        return same(right, answer, tolerance)
    share = rf"\frac{{{right if right != gold else answer}}}{{100}}"
    by_value = same(share, answer, None) if right != gold else same(right, share, None)
    large = right != gold or abs(numeric(right) or 0) >= 1
    return by_value or (large and same(right, answer, tolerance))


def _approximations(gold: str, said: str, tolerance: float | None) -> bool | None:
    r"""``exact \approx decimal``: either side may be the answer that was asked for, and a rounded gold rounds ours."""
    ours, theirs = split_top(gold, _APPROX), split_top(said, _APPROX)
    if len(theirs) > 1:
        return any(same(gold, side, tolerance) for side in theirs)
    rounded = gold.startswith(r"\approx")
    if len(ours) == 1 and not rounded:
        return same(gold, theirs[0], tolerance) if said.startswith(r"\approx") and theirs else None
    if any(same(side, theirs[0], tolerance) for side in ours):
        return True
    value = numeric(theirs[0])
    return rounded and value is not None and _rounds_to(value, ours[0], 1)


_RULES: tuple[Rule, ...] = (
    same_letters,
    _approximations,
    _percents,
    _decimals,
    same_words,
    same_in_base,
    same_clock,
    _equations,
    lambda gold, said, _: same_real_set(gold, said),
    _sequences,
    _unions,
    lambda gold, said, _: same_family(gold, said),
)


def same(gold: str, said: str, tolerance: float | None) -> bool:
    """Whether two spelled elements are equal."""
    gold, said = strip_units(gold), strip_units(said)
    for rule in _RULES:
        verdict = rule(gold, said, tolerance)
        if verdict is not None:
            return verdict
    return equal(gold, said)


# --- lists of elements ---


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
    ours, theirs = opened[0] or _by_name(ours), opened[1] or _by_name(theirs)
    pairs = zip(ours, theirs, strict=False)
    return len(ours) == len(theirs) > 1 and all(same(*pair, tolerance) for pair in pairs)


def _by_name(side: list[str]) -> list[str]:
    """``y=2, x=1`` in the order of its one-letter names; anything else as it is."""
    names = [one[0] if (one := named(part)) and re.fullmatch("[A-Za-z]", one[0]) else "" for part in side]
    if not all(names) or len(set(names)) < len(names):
        return side
    # In space-time coordinates w comes last.
    order = sorted(range(len(side)), key=lambda at: (names[at] == "w" and "z" in names, names[at]))
    return [side[at] for at in order]


def _round_content(side: list[str]) -> list[str] | None:
    """The elements of a lone tuple in round brackets, also behind a name: ``(x, y) = (1, 2)``."""
    if len(side) != 1:
        return None
    pair = named(side[0])
    ends = enclosed(pair[1] if pair else side[0])
    if not ends or (ends[0], ends[2]) != ("(", ")"):
        return None
    return [sign for part in split_top(ends[1], "[,;]") for sign in both_signs(part)]


def _repeated(ours: list[str], theirs: list[str], tolerance: float | None) -> bool:
    r"""One answer in several spellings, ``\frac{1}{2}, 0.5``: each of them must be right."""
    return len(ours) == 1 < len(theirs) <= 3 and all(same(ours[0], other, tolerance) for other in theirs)


# --- whole answers ---


def judge(gold: Gold, answer: str) -> bool:
    """Whether an extracted answer is right."""
    plain = decide_plain(gold, answer)
    if plain is not None:
        return plain
    right, said = spelled(gold.answer), spelled(answer)
    if not right or not said:
        return False
    if same_letters(right, said, None):
        return True
    unit = spelled(gold.unit) if gold.unit else None
    ratio = unit_ratio(gold.answer, answer, gold.unit)
    if ratio is None:
        return False
    right, said = strip_units(right, unit), strip_units(said, unit)
    if re.search(r"\d|\\pi", right):
        said = strip_introduction(said)
    if (angle := angle_factor(gold.answer, answer)) is not None:
        said = rf"{angle}\cdot({said})"
    if ratio != 1:
        said = rf"\frac{{{ratio.numerator}}}{{{ratio.denominator}}}\cdot({said})"
    as_sets = None if gold.multiple else same_real_set(right, said)
    return as_sets if as_sets is not None else _as_lists(gold, listed(right), listed(said))


def _as_lists(gold: Gold, right: str, said: str) -> bool:
    """Whether the elements agree in some reading of both sides."""
    # Set braces say that there is no order, so a set and a tuple differ.
    ordered = r"\{" not in right + said
    tolerance = gold.tolerance
    return any(
        matched(ours, theirs, tolerance)
        or (ordered and _in_order(ours, theirs, tolerance))
        or (ordered and not gold.multiple and _repeated(ours, theirs, tolerance))
        for ours in readings(right, is_list=gold.multiple)
        for theirs in readings(said, is_list=False)
    )
