"""Three estimates of one number: every number of a plan is low, middle and high."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

Scenario = Literal["low", "mid", "high"]
SCENARIOS: tuple[Scenario, ...] = ("low", "mid", "high")


@dataclass(frozen=True)
class Range:
    """A number in the scenarios that cost little, a middling amount and much.

    It is no confidence interval. Costs rise from `low` to `high`. An input of the model may fall:
    an engine that reaches much of its hardware is the low scenario.
    """

    low: float
    mid: float
    high: float

    @staticmethod
    def exactly(value: float) -> Range:
        """A number that is the same in all scenarios."""
        return Range(value, value, value)

    @staticmethod
    def between(low: float, high: float) -> Range:
        """Of two bounds; the middle scenario lies halfway."""
        return Range(low, (low + high) / 2, high)

    @staticmethod
    def of(estimate: Callable[[Scenario], float]) -> Range:
        """Evaluate `estimate` in each scenario."""
        return Range(estimate("low"), estimate("mid"), estimate("high"))

    @staticmethod
    def total(ranges: Iterable[Range]) -> Range:
        """Sums, scenario by scenario."""
        low = mid = high = 0.0
        for part in ranges:
            low += part.low
            mid += part.mid
            high += part.high
        return Range(low, mid, high)

    def at(self, scenario: Scenario) -> float:
        """The number in one scenario."""
        return getattr(self, scenario)

    def __add__(self, other: Range) -> Range:
        """Scenario by scenario."""
        return Range(self.low + other.low, self.mid + other.mid, self.high + other.high)

    def __mul__(self, other: Range | float) -> Range:
        """Scenario by scenario."""
        if isinstance(other, Range):
            return Range(self.low * other.low, self.mid * other.mid, self.high * other.high)
        return Range(self.low * other, self.mid * other, self.high * other)

    def __truediv__(self, number: float) -> Range:
        return Range(self.low / number, self.mid / number, self.high / number)


NOTHING = Range(0.0, 0.0, 0.0)
