"""Numbers as the page shows them; a number that is not there is an empty text, which a table shows
as missing.
"""

from __future__ import annotations

from analysis.numbers import tenths_text
from analysis.scores.evidence import Estimate


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
