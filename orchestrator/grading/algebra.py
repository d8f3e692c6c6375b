"""Exact comparison of two mathematical expressions in LaTeX: parsed by math_verify, compared by value.

Expressions with unknowns are compared at fixed points of exact rational coordinates rather than simplified: that takes
milliseconds where simplification takes seconds, and two different expressions of the kind answers are made of do not
agree at several unrelated points. sympy and math_verify are imported at the first use.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

from orchestrator.grading.gold import plain_number

# Digits for the value of a constant, and the most that cancellation may cost while two of them are told apart.
_DIGITS, _MAX_DIGITS = 30, 400
_POINTS, _ENOUGH = 8, 3
# Unrelated fractions, so that no two terms cancel by accident.
_NUMERATORS = (1009, 2003, 631, 1493, 787, 3001, 211, 1777)
_DENOMINATORS = (613, 977, 499, 367, 1237, 1451, 307, 829)
# A loose digit group: the parser would read the first and drop the rest.
_LOOSE_DIGITS = re.compile(r"\d +\d")
# No gold is near it, and computing it takes longer than any deadline.
_HUGE_FACTORIAL = re.compile(r"\d{5,}\}?\s*!")
_FRACTION = re.compile(
    r"\s*(-?)\s*(?:\\frac\s*\{\s*(-?\d{1,18})\s*\}\s*\{\s*(-?\d{1,18})\s*\}|"
    r"(\d{1,18})\s*/\s*(\d{1,18})|\\frac\s*(\d)(\d))\s*",
    re.ASCII,
)
# The parser takes floats for decimals, and `3(\frac12)` for a mixed number.
_DECIMAL = re.compile(r"(?<![\d.])(?:\d+\.\d+|\.\d+|\d+\.(?!\d))")
_FACTOR = re.compile(r"(?<![\d_^.])(\d+)\s*\((?=\s*\{?\\frac)")
_IMAGINARY_FREE = re.compile(r"\\(?:sum|prod)")


# A training batch holds many answers to the same few golds.
@lru_cache(maxsize=1000)
def parsed(text: str) -> Any:
    """The sympy object a LaTeX text stands for, evaluated, with exact decimals; None if it can't be read."""
    import sympy
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    plain = _rational(text)
    if plain is not None:
        return sympy.Rational(plain.numerator, plain.denominator)
    if _LOOSE_DIGITS.search(text) or _HUGE_FACTORIAL.search(text):
        return None
    # units=False: its unit list holds single letters, by which `6m` would become 6.
    normalization = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="last")
    config = LatexExtractionConfig(boxed_match_priority=0, normalization_config=normalization)
    # A bare `2^{1009}` parses to 2, so everything goes in a box. The parent's deadline replaces the library's timeout.
    found = parse(rf"\boxed{{{_exact(text)}}}", [config], fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    if not found or isinstance(found[0], str):
        return None
    result = found[0].doit()
    if isinstance(result, sympy.MatrixBase):
        return result.applyfunc(lambda entry: _canonical(entry, text))
    return _canonical(result, text)


def _rational(text: str) -> Fraction | None:
    """The value of a numeral or a plain fraction, by far the most common answers; None for anything else."""
    found = _FRACTION.fullmatch(text)
    if not found:
        return plain_number(text)
    sign, *pairs = found.groups()
    top, bottom = (int(one) for one in pairs if one is not None)
    return None if bottom == 0 else Fraction(-top if sign else top, bottom)


def _exact(text: str) -> str:
    """The text with decimals as fractions."""
    return _FACTOR.sub(r"\1\\cdot (", _DECIMAL.sub(_as_fraction, text))


def _as_fraction(decimal: re.Match[str]) -> str:
    value = Fraction(decimal[0])
    return rf"{{\frac{{{value.numerator}}}{{{value.denominator}}}}}" if value.denominator > 1 else str(value)


def _canonical(expression: Any, text: str) -> Any:
    """One symbol for each name, and the imaginary unit for a lone i."""
    import sympy

    if not isinstance(expression, sympy.Basic):
        return expression
    exact = {}
    for symbol in expression.atoms(sympy.Symbol):
        imaginary = symbol.name == "i" and not _IMAGINARY_FREE.search(text)
        exact[symbol] = sympy.I if imaginary else sympy.Symbol(symbol.name, real=True)
    return expression.xreplace(exact).doit() if exact else expression


def numeric(text: str) -> Fraction | None:
    """A real constant's value to 30 digits, None for anything else."""
    return _value(parsed(text))


def _value(expression: Any) -> Fraction | None:
    """A parsed real constant's value to 30 digits, exact if it's rational; None for anything else."""
    import sympy

    if not isinstance(expression, sympy.Expr) or expression.free_symbols:
        return None
    if isinstance(expression, sympy.Rational):
        return Fraction(expression.p, expression.q)
    value = expression.evalf(_DIGITS)
    if not isinstance(value, sympy.Float) or not value.is_finite:
        return None
    return Fraction(str(value))


def real_constant(text: str) -> Any:
    """The exact sympy number of a real constant, None for anything else."""
    expression = parsed(text)
    return None if _value(expression) is None else expression


def equal(gold: str, said: str, rename: tuple[str, str] | None = None) -> bool:
    """Whether two LaTeX expressions are equal. ``rename``: a symbol of the answer and what it's called in the gold."""
    import sympy

    right, answer = parsed(gold), parsed(said)
    if right is None or answer is None:
        return False
    if rename:
        old, new = (sympy.Symbol(name, real=True) for name in rename)
        if new in answer.free_symbols:
            return False
        answer = answer.subs(old, new)
    verdict = _same_value(right, answer)
    return _by_library(right, answer) if verdict is None else verdict


def _same_value(right: Any, answer: Any) -> bool | None:
    """Whether two parsed expressions, matrices or equations agree; None for other kinds, or if they can't be valued."""
    import sympy

    if isinstance(right, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase):
        entries = zip(right.flat(), answer.flat(), strict=True)
        return right.shape == answer.shape and all(_by_value(one, other) for one, other in entries)
    if isinstance(right, sympy.Eq) and isinstance(answer, sympy.Eq):
        return _proportional(right, answer)
    if isinstance(right, sympy.Expr) and isinstance(answer, sympy.Expr):
        return _by_value(right, answer)
    return None


def _by_library(right: Any, answer: Any) -> bool:
    """math_verify's verdict on sets, inequalities and what has no value."""
    from math_verify import verify

    return verify([right], [answer], timeout_seconds=None, allow_set_relation_comp=True)


def _by_value(right: Any, answer: Any) -> bool | None:
    """Whether two scalar expressions agree, at every point if they have unknowns."""
    import sympy

    difference = right - answer
    if not difference.free_symbols:
        if right.has(sympy.zoo, sympy.nan):
            return False
        # Infinities have no difference: they are equal only if they are the same.
        return right == answer or _is_zero(difference, right)
    valued = 0
    for point in _points(difference):
        ours, theirs = right.xreplace(point), answer.xreplace(point)
        if valued >= _ENOUGH and not (ours.is_real and theirs.is_real):
            # Roots and logarithms of negative numbers follow conventions that no answer is about.
            continue
        if _in_whole_numbers(difference) and (ours.is_zero or theirs.is_zero):
            # The factorial of a negative number below a fraction line.
            continue
        zero = _is_zero(difference.xreplace(point), ours)
        if zero is False:
            return False
        valued += zero is True
    return True if valued >= _ENOUGH else None


def _is_zero(difference: Any, scale: Any) -> bool | None:
    """Whether a constant is zero, None if it has no value. ``scale``: one of the two numbers whose difference it is."""
    import sympy

    difference = difference.doit()
    if isinstance(difference, sympy.Rational):
        return difference == 0
    if difference.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo):
        return None
    value = difference.evalf(_DIGITS, maxn=_MAX_DIGITS)
    if not value.is_number or value.has(sympy.nan, sympy.zoo) or value.atoms(sympy.Function):
        return None
    size = abs(scale.doit().evalf(_DIGITS))
    return bool(abs(value) <= sympy.Float(10, _DIGITS) ** (60 - _MAX_DIGITS) * sympy.Max(1, size))


def _in_whole_numbers(expression: Any) -> bool:
    """Whether an expression is one of whole numbers: with factorials, rounding, or a power of a negative number."""
    import sympy

    return expression.has(sympy.floor, sympy.ceiling, sympy.factorial, sympy.binomial, sympy.Mod) or any(
        power.base.is_negative and power.exp.free_symbols for power in expression.atoms(sympy.Pow)
    )


def _points(expression: Any) -> Iterator[dict[Any, Any]]:
    """Points for every unknown: positive ones first, then all negative; whole numbers where only those make sense."""
    import sympy

    names = sorted(expression.free_symbols, key=str)
    whole = _in_whole_numbers(expression)
    for turn in range(_POINTS):
        if whole:
            # Every second time the first is the largest.
            steps = range(len(names)) if turn % 2 else range(len(names) - 1, -1, -1)
            values = [sympy.Integer(12 + turn + 7 * step) for step in steps]
        else:
            sign = -1 if turn > _ENOUGH else 1
            values = [
                sympy.Rational(sign * _NUMERATORS[(index + turn) % 8], _DENOMINATORS[(2 * index + turn) % 8])
                for index in range(len(names))
            ]
        yield dict(zip(names, values, strict=True))


def _numerator(expression: Any) -> Any:
    import sympy

    together: Any = sympy.together(expression)
    return together.as_numer_denom()[0]


def _proportional(right: Any, answer: Any) -> bool:
    """Whether two equations have the same solutions up to a constant factor and to cleared denominators."""
    import sympy

    ours, theirs = (_numerator(side.lhs - side.rhs) for side in (right, answer))
    if ours.free_symbols != theirs.free_symbols:
        return False
    points = list(itertools.islice(_points(ours), _ENOUGH + 1))
    values = [(ours.xreplace(point), theirs.xreplace(point)) for point in points]
    (first, other), rest = values[0], values[1:]
    if _is_zero(first, sympy.Integer(1)) is not False or _is_zero(other, sympy.Integer(1)) is not False:
        return False
    return all(_is_zero(first * there - other * here, first) for here, there in rest)


# --- families of angles ---


def same_family(gold: str, said: str) -> bool | None:
    """Whether two expressions with one whole-number parameter run through the same angles, None if they aren't such.

    Only a period with π in it tells a family from an expression that happens to have one unknown.
    """
    if r"\pi" not in gold or r"\pi" not in said:
        return None
    right, answer = _family(parsed(gold)), _family(parsed(said))
    if right is None or answer is None:
        return None
    (start, period), (other, other_period) = right, answer
    if (period - other_period).simplify() != 0 and (period + other_period).simplify() != 0:
        return False
    return bool(((start - other) / period).simplify().is_integer)


def _family(expression: Any) -> tuple[Any, Any] | None:
    """(start, period) of an expression linear in its only unknown with a multiple of π as period."""
    import sympy

    if not isinstance(expression, sympy.Expr) or len(expression.free_symbols) != 1:
        return None
    parameter: Any = next(iter(expression.free_symbols))
    if parameter.name not in "klmn":
        return None
    period = sympy.expand(expression).coeff(parameter, 1)
    start = sympy.expand(expression - period * parameter)
    if start.free_symbols or not (period / sympy.pi).is_rational or period == 0:
        return None
    return start, period
