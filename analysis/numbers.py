"""Numbers as texts, in every form of the table."""

from __future__ import annotations

from fractions import Fraction


def round_to_tenths(value: Fraction) -> int:
    """Tenths of a non-negative value, the exact half rounded up: 0.05 gives 1."""
    return int(value * 10 + Fraction(1, 2))


def tenths_text(value: Fraction | float) -> str:
    """A value with one decimal, the exact half rounded away from zero; `-0.0` is `0.0`."""
    tenths = round_to_tenths(abs(Fraction(value)))
    return f"{'-' if value < 0 and tenths else ''}{tenths // 10}.{tenths % 10}"


def signed(value: Fraction | float) -> str:
    """A number with one decimal and its sign; zero has none."""
    text = tenths_text(value)
    return text.replace("-", "−") if text.startswith("-") or text == "0.0" else f"+{text}"


def decimal_text(value: Fraction | float, decimals: int = 1, plus: bool = False) -> str:
    """A value with so many decimals; one as by `tenths_text`, and by `signed` with a `plus`."""
    if decimals == 1:
        return signed(value) if plus else tenths_text(value)
    text = f"{float(value):.{decimals}f}"
    if not any(digit in text for digit in "123456789"):
        return text.removeprefix("-")
    return text.replace("-", "−") if text.startswith("-") else f"+{text}" if plus else text


def limits_text(low: float, high: float, decimals: int = 1) -> str:
    """`[+1.2, +7.0]`, of a difference."""
    return f"[{decimal_text(low, decimals, plus=True)}, {decimal_text(high, decimals, plus=True)}]"


def p_text(value: float | None) -> str:
    """Three decimals; what would read as nothing is a bound, and what is not known is empty."""
    if value is None:
        return ""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def p_equation(value: float) -> str:
    """`p = 0.014`, or `p < 0.001`."""
    text = p_text(value)
    return f"p {text}" if text.startswith("<") else f"p = {text}"
