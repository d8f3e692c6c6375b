"""Values as the page shows them. A missing number is an empty text, which a table marks with –."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from analysis.facts.evidence import Estimate
from analysis.numbers import tenths_text


def whole(value: int | None) -> str:
    """`12,345`."""
    return "" if value is None else f"{value:,}"


def decimal(value: float | None, places: int = 1) -> str:
    """A fixed number of decimals, with commas."""
    return "" if value is None else f"{value:,.{places}f}"


def signed_decimal(value: float) -> str:
    """Two decimals after a real minus sign."""
    return f"{value:.2f}".replace("-", "−")


def duration_in_words(seconds: float) -> str:
    """`1 h 05 min`, `4 min 10 s`, `8.3 s`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60:,} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"


def limits(estimate: Estimate) -> str:
    """`[54.5, 60.3]`, in per cent."""
    return f"[{tenths_text(estimate.interval.low)}, {tenths_text(estimate.interval.high)}]"


def leaves(values: Mapping[str, Any], between: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a nested document, each with the keys that lead to it."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, between, f"{prefix}{key}{between}")
        else:
            yield f"{prefix}{key}", value


def plain(value: Any) -> str:
    """A value as an experiment file writes it."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case list() | tuple():
            return ", ".join(map(plain, value))
    return str(value)
