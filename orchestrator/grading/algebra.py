r"""Compares two mathematical expressions in LaTeX: math_verify parses them, their values decide.

Expressions with unknowns are compared at fixed points of exact rational coordinates rather than
simplified. That takes milliseconds instead of seconds, and two different expressions, as simple as
answers are, do not agree at several unrelated points. Families of angles such as ``\frac{\pi}{6} +
2\pi k`` are compared by start and period. sympy and math_verify are imported at the first use.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

from orchestrator.grading.gold import plain_number

# Digits for the value of a constant, and the most that cancellation may cost while two constants
# are distinguished.
_DIGITS, _MAX_DIGITS = 30, 400
# Number of points to try, and how many of them must have a value before two expressions count as
# equal. At some points an expression has no value (a logarithm of 0), or one that follows a
# convention.
_POINTS, _ENOUGH = 8, 3
# Coordinates of the points: unrelated fractions of primes, so that no two terms cancel by accident.
_NUMERATORS = (1009, 2003, 631, 1493, 787, 3001, 211, 1777)
_DENOMINATORS = (613, 977, 499, 367, 1237, 1451, 307, 829)
# Digits apart, `1 2`: the parser would read the first group and drop the rest.
_LOOSE_DIGITS = re.compile(r"\d +\d")
# Numbers beyond these are no gold, and computing them takes longer than any deadline: digits of a
# power, factorials from five digits on, bounds of a sum or product. Powers of an unknown are
# computed at fractions of about seven digits.
_MOST_DIGITS, _FACTORIAL, _BOUND, _UNKNOWN_DIGITS = 1_000_000, 4.0, 5.0, 7.0
_SIZED = re.compile(
    r"(?P<number>\d+)|(?P<range>\\(?:sum|prod)(?![A-Za-z]))|\\(?:[A-Za-z]+|.)|(?P<open>[({\[])|(?P<close>[)}\]])|"
    r"(?P<letter>[A-Za-z])|(?P<sign>[_^!])"
)
_FRACTION = re.compile(
    r"\s*(-?)\s*(?:\\frac\s*\{\s*(-?\d{1,18})\s*\}\s*\{\s*(-?\d{1,18})\s*\}|"
    r"(\d{1,18})\s*/\s*(\d{1,18})|\\frac\s*(\d)(\d))\s*",
    re.ASCII,
)
# `_exact` rewrites these: the parser turns decimals into floats, and reads the product `3(\frac12)`
# as a mixed number.
_DECIMAL = re.compile(r"(?<![\d.])(?:\d+\.\d+|\.\d+|\d+\.(?!\d))")
_FACTOR = re.compile(r"(?<![\d_^.])(\d+)\s*\((?=\s*\{?\\frac)")
# Expressions in which i is an index, not the imaginary unit.
_INDEXED = re.compile(r"\\(?:sum|prod)")


# A training batch holds many answers to the same few golds.
@lru_cache(maxsize=1000)
def parsed(text: str) -> Any:
    """Parse a LaTeX text to an evaluated sympy object with exact decimals; None if unreadable."""
    import sympy
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    plain = _rational(text)
    if plain is not None:
        return sympy.Rational(plain.numerator, plain.denominator)
    exact = _exact(text)
    if _LOOSE_DIGITS.search(text) or _is_huge(exact):
        return None
    # units=False: its unit list holds single letters, by which `6m` would become 6.
    normalization = NormalizationConfig(
        units=False, malformed_operators=True, nits=True, boxed="last"
    )
    config = LatexExtractionConfig(boxed_match_priority=0, normalization_config=normalization)
    # A bare `2^{1009}` parses to 2, so everything goes in a box. The parent's deadline replaces the
    # library's timeout.
    candidates = parse(
        rf"\boxed{{{exact}}}",
        [config],
        fallback_mode="no_fallback",
        parsing_timeout=None,  # pyright: ignore[reportArgumentType]
    )
    if not candidates or isinstance(candidates[0], str):
        return None
    result = candidates[0].doit()
    if isinstance(result, sympy.MatrixBase):
        return result.applyfunc(lambda entry: _canonical(entry, text))
    return _canonical(result, text)


class _Size:
    """The size of a bracket's content so far, as a decimal logarithm from above.

    All numbers count as factors of at least two, since 1 + n <= 2n. `last` is the size of the last
    operand, to which a following `^` or `!` belongs, None for an unknown.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self.operands = 0
        self.has_letters = False
        self.last: float | None = 0.0
        self.sign = ""  # `^` or `_` before the next operand
        self.range = False  # the next `_` and `^` are bounds of a sum

    def whole(self) -> float:
        """The size of all of it."""
        return self.total if self.operands == 1 else self.total + self.operands * math.log10(2)

    def is_huge_with(self, size: float, has_letters: bool) -> bool:
        """Add an operand; whether that makes a number too large to compute."""
        sign, self.sign = self.sign, ""
        self.has_letters = self.has_letters or has_letters
        if sign and self.range:
            self.range = sign == "_"
            return size > _BOUND
        if sign != "^":
            self.operands += 1
            self.total += size
            self.last = None if has_letters else size
            return False
        if has_letters:
            self.last = None
            return False
        base = _UNKNOWN_DIGITS if self.last is None else self.last
        power = base * 10 ** min(size, 18.0)
        if self.last is not None:
            self.total += power - base
            self.last = power
        return power > _MOST_DIGITS

    def is_huge_factorial(self) -> bool:
        """Turn the last operand into its factorial; whether that is too large to compute."""
        if self.last is None or self.last >= _FACTORIAL:
            return self.last is not None
        factorial = math.lgamma(10**self.last + 1) / math.log(10)
        self.total += factorial - self.last
        self.last = factorial
        return False


def _is_huge(text: str) -> bool:
    r"""Whether a text without decimals computes a huge number: ``9^{9^{9}}``, ``(10^{13})!``.

    The worker's deadline ends what this misses. It spares the time, and it decides alike on fast
    and on slow machines.
    """
    open_brackets = [_Size()]
    for token in _SIZED.finditer(text):
        inner = open_brackets[-1]
        huge = False
        if number := token["number"]:
            size = math.log10(max(1, int(number))) if len(number) < 16 else float(len(number))
            huge = inner.is_huge_with(size, has_letters=False)
        elif token["open"]:
            open_brackets.append(_Size())
        elif token["close"] and len(open_brackets) > 1:
            open_brackets.pop()
            huge = open_brackets[-1].is_huge_with(inner.whole(), inner.has_letters)
        elif letter := token["letter"]:
            # Powers of e and i stay short.
            huge = inner.is_huge_with(0.0, has_letters=True)
            inner.last = 0.0 if letter in "ei" else inner.last
        elif token["range"]:
            inner.range = True
        elif token["sign"] == "!":
            huge = inner.is_huge_factorial()
        elif token["sign"]:
            inner.sign = token["sign"]
        else:  # a command, or what it escapes
            inner.last = 0.0
        if huge:
            return True
    return False


def _rational(text: str) -> Fraction | None:
    """The value of a numeral or a plain fraction, by far the most common answers; else None."""
    match = _FRACTION.fullmatch(text)
    if not match:
        return plain_number(text)
    # The groups of the two unused ways to write a fraction are None.
    sign, *numerals = match.groups()
    top, bottom = (int(numeral) for numeral in numerals if numeral is not None)
    return None if bottom == 0 else Fraction(-top if sign else top, bottom)


def _exact(text: str) -> str:
    r"""Write decimals as fractions, ``0.4\pi`` as ``{\frac{2}{5}}\pi``, and products with a sign."""

    def fraction(decimal: re.Match[str]) -> str:
        value = Fraction(decimal[0])
        if value.denominator == 1:
            return str(value)
        return rf"{{\frac{{{value.numerator}}}{{{value.denominator}}}}}"

    return _FACTOR.sub(r"\1\\cdot (", _DECIMAL.sub(fraction, text))


def _canonical(expression: Any, text: str) -> Any:
    """Give each name one real symbol, and make a lone i the imaginary unit.

    The parser gives one name different assumptions in different texts, and such symbols differ.
    """
    import sympy

    if not isinstance(expression, sympy.Basic):
        return expression
    meanings = {}
    for symbol in expression.atoms(sympy.Symbol):
        imaginary = symbol.name == "i" and not _INDEXED.search(text)
        meanings[symbol] = sympy.I if imaginary else sympy.Symbol(symbol.name, real=True)
    return expression.xreplace(meanings).doit() if meanings else expression


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


def equal(gold: str, answer: str, rename: tuple[str, str] | None = None) -> bool:
    """Whether two LaTeX expressions are equal.

    ``rename`` is a symbol of the answer and its name in the gold, since f(x) = x^2 and f(n) = n^2
    are one function.
    """
    import sympy
    from math_verify import verify

    gold_value, answer_value = parsed(gold), parsed(answer)
    if gold_value is None or answer_value is None:
        return False
    if rename:
        old, new = (sympy.Symbol(name, real=True) for name in rename)
        if new in answer_value.free_symbols:
            return False
        answer_value = answer_value.subs(old, new)
    verdict = _same_value(gold_value, answer_value)
    if verdict is not None:
        return verdict
    # Sets, inequalities and expressions without a value.
    return verify([gold_value], [answer_value], timeout_seconds=None, allow_set_relation_comp=True)


def _same_value(gold: Any, answer: Any) -> bool | None:
    """Whether two parsed expressions, matrices or equations agree; None if values cannot decide."""
    import sympy

    if isinstance(gold, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase):
        entries = zip(gold.flat(), answer.flat(), strict=True)
        return gold.shape == answer.shape and all(_by_value(*pair) for pair in entries)
    if isinstance(gold, sympy.Eq) and isinstance(answer, sympy.Eq):
        return _proportional(gold, answer)
    if isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr):
        return _by_value(gold, answer)
    return None


def _by_value(gold: Any, answer: Any) -> bool | None:
    """Whether two scalar expressions agree at every point; None if too few points decide."""
    import sympy

    difference = gold - answer
    if not difference.free_symbols:
        if gold.has(sympy.zoo, sympy.nan):
            return False
        # Infinities have no difference: they are equal only if they are the same.
        return gold == answer or _is_zero(difference, gold)
    valued = 0
    for point in _points(difference):
        gold_there = gold.xreplace(point)
        answer_there = answer.xreplace(point)
        if valued >= _ENOUGH and not (gold_there.is_real and answer_there.is_real):
            # No answer depends on the conventions for roots and logarithms of negative numbers.
            continue
        if _in_whole_numbers(difference) and (gold_there.is_zero or answer_there.is_zero):
            # The factorial of a negative number is infinite, and below a fraction line gives zero.
            continue
        zero = _is_zero(difference.xreplace(point), gold_there)
        if zero is False:
            return False
        valued += zero is True
    return True if valued >= _ENOUGH else None


def _is_zero(difference: Any, scale: Any) -> bool | None:
    """Whether a difference is zero; None if it has no value.

    ``scale`` is one of the two subtracted numbers. The difference of two equal numbers, such as
    √2·√3 − √6, has no significant digits: sympy gives up at _MAX_DIGITS and returns something of
    that order. Two different numbers in answers do not agree to 340 digits.
    """
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
    """Whether an expression suits only whole numbers: factorials, rounding, (−1)^n."""
    import sympy

    if expression.has(sympy.floor, sympy.ceiling, sympy.factorial, sympy.binomial, sympy.Mod):
        return True
    powers = expression.atoms(sympy.Pow)
    return any(power.base.is_negative and power.exp.free_symbols for power in powers)


def _points(expression: Any) -> Iterator[dict[Any, Any]]:
    """Yield points, {symbol: value}: positive, then negative ones, or whole numbers if needed."""
    import sympy

    names = sorted(expression.free_symbols, key=str)
    whole = _in_whole_numbers(expression)
    for turn in range(_POINTS):
        point: dict[Any, Any] = {}
        for index, name in enumerate(names):
            if whole:
                # In every second point the first unknown is the largest, so that n − k and k − n
                # are both tried positive.
                step = index if turn % 2 else len(names) - 1 - index
                point[name] = sympy.Integer(12 + turn + 7 * step)
            else:
                sign = -1 if turn > _ENOUGH else 1
                numerator = sign * _NUMERATORS[(index + turn) % 8]
                point[name] = sympy.Rational(numerator, _DENOMINATORS[(2 * index + turn) % 8])
        yield point


def _proportional(gold: Any, answer: Any) -> bool:
    """Whether two equations are the same up to a constant factor: y = x/2 and 4y = 2x.

    With everything on one side and the denominators cleared, an equation is a polynomial (or the
    like) set to zero. Two such expressions g and a are proportional if g(first)·a(point) =
    a(first)·g(point) at every other point.
    """
    import sympy

    numerators = []
    for equation in (gold, answer):
        over_one_denominator: Any = sympy.together(equation.lhs - equation.rhs)
        numerators.append(over_one_denominator.as_numer_denom()[0])
    ours, theirs = numerators
    if ours.free_symbols != theirs.free_symbols:
        return False
    points = list(itertools.islice(_points(ours), _ENOUGH + 1))
    our_first = ours.xreplace(points[0])
    their_first = theirs.xreplace(points[0])
    for first in (our_first, their_first):
        if _is_zero(first, sympy.Integer(1)) is not False:
            return False
    for point in points[1:]:
        difference = our_first * theirs.xreplace(point) - their_first * ours.xreplace(point)
        if not _is_zero(difference, our_first):
            return False
    return True


# --- families of angles ---


def same_family(gold: str, answer: str) -> bool | None:
    r"""Whether two families with one whole-number parameter hold the same angles; None for others.

    Neither the parameter's letter nor the starting point matters: ``\frac{\pi}{6}+2\pi k`` and
    ``\frac{13\pi}{6}+2\pi n``. A period with π in it distinguishes a family from an expression that
    happens to have one unknown.
    """
    if r"\pi" not in gold or r"\pi" not in answer:
        return None
    gold_family, answer_family = _family(parsed(gold)), _family(parsed(answer))
    if gold_family is None or answer_family is None:
        return None
    (gold_start, gold_period), (answer_start, answer_period) = gold_family, answer_family
    forwards = (gold_period - answer_period).simplify() == 0
    if not forwards and (gold_period + answer_period).simplify() != 0:
        return False  # a family may also run backwards, but not with another period
    return bool(((gold_start - answer_start) / gold_period).simplify().is_integer)


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
