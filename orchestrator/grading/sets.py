r"""Reads sets of real numbers in any notation: ``(2,5]``, ``2 < x \le 5``, ``\{x : x > 2\}``."""

from __future__ import annotations

import re
from typing import Any

from orchestrator.grading.algebra import real_constant
from orchestrator.grading.spelling import TEXT
from orchestrator.grading.structure import enclosed, is_name, named, split_top

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
