"""A second grader for audits: math-verify with its own defaults, and none of this project's rules.

It grades no sweep. `trb regrade --audit` names it as the judge of each gold, so that it runs in the
grading process (`worker`), which is killed at the deadline: math-verify can hang.
"""

from __future__ import annotations

from orchestrator.grading.gold import Gold

VERSION = 1  # of this judge, as a module has that is named by `module:function`
ALONE = f"{__name__}:judge"


def judge(gold: Gold, answer: str) -> bool:
    """Whether math-verify takes the answer for equal to the gold."""
    from math_verify import parse, verify  # imports sympy, which takes seconds

    # The parent keeps the deadline instead of the library's timeouts.
    no_limit: int = None  # pyright: ignore[reportAssignmentType]
    right = parse(rf"\boxed{{{gold.answer}}}", parsing_timeout=no_limit)
    given = parse(rf"\boxed{{{answer}}}", parsing_timeout=no_limit)
    return verify(right, given, timeout_seconds=no_limit)
