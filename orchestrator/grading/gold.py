"""The form of a gold answer, and the exact comparison of plain numerals.

`data.problems` says where the golds of each source come from.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

MATH = "math"  # the judge of every answer whose benchmark names no other

_NUMERAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)", re.ASCII)
_MAX_NUMERAL_CHARS = 1000


@dataclass(frozen=True)
class Gold:
    """A gold answer as the benchmark publishes it.

    - ``multiple``: ``answer`` holds several answers, separated by commas, in free order.
    - ``unit``: a unit that the benchmark states apart from the answer; an answer may carry it.
    - ``tolerance``: allowed absolute difference.
    - ``judge``: a name or a ``module:function`` of `judges`, which decides on answers to this gold.

    Raises ValueError on a field of the wrong type, or a tolerance that is no finite number >= 0.
    """

    answer: str
    multiple: bool = False
    unit: str | None = None
    tolerance: float | None = None
    judge: str = MATH

    def __post_init__(self) -> None:
        """Check the types, since golds are read from files."""
        if not isinstance(self.answer, str) or not self.answer.strip():
            raise ValueError(f"gold field 'answer' is {self.answer!r}: expected a non-empty string")
        if not isinstance(self.multiple, bool):
            raise ValueError(f"gold field 'multiple' is {self.multiple!r}: expected true or false")
        if self.unit is not None and not isinstance(self.unit, str):
            raise ValueError(f"gold field 'unit' is {self.unit!r}: expected a string or null")
        if self.tolerance is not None and not _is_tolerance(self.tolerance):
            raise ValueError(
                f"gold field 'tolerance' is {self.tolerance!r}: "
                "expected a finite number >= 0 or null"
            )
        if not isinstance(self.judge, str) or not self.judge:
            raise ValueError(
                f"gold field 'judge' is {self.judge!r}: expected a name or module:function"
            )


def _is_tolerance(value: object) -> bool:
    """Whether the value is a finite non-negative number (bool is not a number here)."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    )


def plain_number(text: str) -> Fraction | None:
    """The exact value of a plain decimal numeral (``025``, ``27.0``, ``-.5``), else None."""
    text = text.strip()
    if len(text) > _MAX_NUMERAL_CHARS or not _NUMERAL.fullmatch(text):
        return None
    return Fraction(text)


def within(gold: Fraction, answer: Fraction, tolerance: float | None) -> bool:
    """Whether two exact numbers agree up to an absolute, inclusive tolerance."""
    # `repr` makes a tolerance of 0.1 one tenth exactly, and not the float nearest to it.
    return abs(gold - answer) <= (Fraction(repr(tolerance)) if tolerance else 0)


def decide_plain(gold: Gold, answer: str) -> bool | None:
    """The verdict if both sides are plain numerals, else None.

    It is also the worker's first rule, so that an answer is judged the same with and without a
    worker.
    """
    gold_number, answer_number = plain_number(gold.answer), plain_number(answer)
    if gold_number is None or answer_number is None:
        return None
    return within(gold_number, answer_number, gold.tolerance)
