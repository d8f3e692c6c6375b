"""Gold answers as benchmarks state them, and the judges that compare answers with them."""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from orchestrator.errors import refuse
from orchestrator.user_code import named_function

MATH = "math"  # the judge of every answer whose benchmark names no other

_NUMERAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)", re.ASCII)
_MAX_NUMERAL_CHARS = 1000


@dataclass(frozen=True)
class Gold:
    """A gold answer as the benchmark publishes it.

    - ``multiple``: ``answer`` holds several answers, separated by commas, in free order.
    - ``unit``: a unit that the benchmark states apart from the answer; an answer may carry it.
    - ``tolerance``: allowed absolute difference.
    - ``judge``: a name or a ``module:function`` of `JUDGES`, which decides on answers to this gold.

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


# --- judges: by name, or by `module:function` for a judge of the user's own ---
#
# `evaluation.benchmarks.<name>.grader` names the judge of a benchmark; training rewards always come
# from `math`. A judge is called with the gold and the content of the answer's last box, and does not
# see the problem. It runs in the grading process (`worker`), which ends a call that takes longer than
# `runtime.grader_deadline_s`, 5 s by default. A late or failing judge counts as wrong. The version of
# a judge is part of an evaluation's id. docs/add-a-grader.md explains how to write one, also one that
# asks a language model.


# Part of every evaluation's identity: raise it with any change that can change a grade.
GRADER_VERSION = "3"

# Name → place and version. The mathematical judge takes long to import, and its version does not
# need it.
JUDGES = {MATH: ("orchestrator.grading.judge:judge", GRADER_VERSION)}


def version_of(name: str, key: str = "grader") -> str:
    """The version of a judge: a whole number from 1 on, `VERSION` in the module of a user's judge.

    Raises UserError, which names `key`, if no judge has this name.
    """
    if name in JUDGES:
        return JUDGES[name][1]
    return _own(name, key)[1]


def judge_of(name: str) -> Callable[[Gold, str], bool]:
    """The judge of this name; UserError where no judge has it."""
    if name in JUDGES:
        module, _, function = JUDGES[name][0].partition(":")
        return getattr(importlib.import_module(module), function)
    return _own(name, "grader")[0]


@functools.cache
def _own(name: str, key: str) -> tuple[Callable[..., Any], str]:
    """The function `module:function` and its module's VERSION. UserError without either of them."""
    function, module = named_function(key, name, JUDGES)
    version = getattr(module, "VERSION", None)
    if type(version) is not int or version < 1:
        raise refuse(
            key,
            name,
            f"VERSION = 1, or a later whole number, in {module.__name__}; it is {version!r}",
        )
    return function, str(version)
