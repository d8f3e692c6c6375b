r"""Families of angles such as ``\frac{\pi}{6} + 2\pi k``, where neither the letter nor the starting point matters."""

from __future__ import annotations

from typing import Any

from orchestrator.grading.algebra import parsed


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
