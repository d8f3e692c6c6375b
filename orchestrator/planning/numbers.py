"""Three estimates of one number, low, middle and high, and numbers of a plan as people read them.

The docstring of a function that writes a number shows what comes out.
"""

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


# --- as people read them ---


def hours_text(hours: Range) -> str:
    """`197,000 – 334,000`."""
    return span_text(hours, short_hours)


def long_time(hours: Range) -> str:
    """`33,400 – 76,400 hours = 3.8 – 8.7 years`; days from two days on, years from two years on."""
    time = clock_time(hours)
    return time if time.endswith("hours") else f"{hours_text(hours)} hours = {time}"


def clock_time(hours: Range) -> str:
    """`3.8 – 8.7 years`, `5.8 – 49 days` or `3.1 – 7.7 hours`: the largest unit that fits twice."""
    for size, noun in ((24 * 365.25, "years"), (24.0, "days")):
        if hours.high >= 2 * size:
            return f"{span_text(hours / size, two_digits)} {noun}"
    return f"{hours_text(hours)} hours"


def two_digits(number: float) -> str:
    """`0.4`, `5.8`, `49`, `390`: two digits, or one decimal."""
    return f"{number:.1f}" if number < 10 else f"{float(f'{number:.2g}'):,.0f}"


def counted(number: float, noun: str) -> str:
    """`1 unit`, `3 units`."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def span_text(estimate: Range, form: Callable[[float], str]) -> str:
    """`0.15 – 0.4`, or one number where low and high read the same."""
    low, high = form(estimate.low), form(estimate.high)
    return low if low == high else f"{low} – {high}"


def short(number: float) -> str:
    """`1.86 T`, `63.1 B`, `840 k`: three digits."""
    for size, suffix in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return _three_digits(number / size) + suffix
    return f"{number:g}"


def short_hours(hours: float) -> str:
    """`0.25`, `72.4`, `33,400`: three digits."""
    return _three_digits(hours) if hours < 1000 else f"{float(f'{hours:.3g}'):,.0f}"


def _three_digits(number: float) -> str:
    decimals = 0 if number >= 100 else 1 if number >= 10 else 2
    return f"{number:.{decimals}f}"


def gib_text(size: float) -> str:
    """`840 GiB`, `1.32 TiB`, `4.30 MiB`: three digits."""
    if size >= 1024:
        return f"{_three_digits(size / 1024)} TiB"
    if size < 0.1:
        return f"{_three_digits(size * 1024)} MiB"
    return f"{_three_digits(size)} GiB"


def size_text(size: int) -> str:
    """`812 bytes`, `4.20 MB`: three digits from a kilobyte on, in units of file managers."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= factor:
            return f"{_three_digits(size / factor)} {unit}"
    return counted(size, "byte")
