"""A low and a high estimate: what every number of a plan is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """A low and a high estimate, no confidence interval."""

    low: float
    high: float

    def __mul__(self, other: Range | float) -> Range:
        """Low with low and high with high."""
        low, high = (other.low, other.high) if isinstance(other, Range) else (other, other)
        return Range(self.low * low, self.high * high)

    def __truediv__(self, number: float) -> Range:
        return Range(self.low / number, self.high / number)

    @staticmethod
    def total(ranges: Iterable[Range]) -> Range:
        """Sum of the low and of the high estimates."""
        parts = list(ranges)
        return Range(sum(part.low for part in parts), sum(part.high for part in parts))
