"""The judges of answers: by name, or by `module:function` for a judge of the user's own.

`evaluation.benchmarks.<name>.grader` names the judge of a benchmark; training rewards always come
from `math`. A judge is called with the gold and the content of the answer's last box, and does not
see the problem. It runs in the grading process (`worker`), which ends a call that takes longer than
`runtime.grader_deadline_s`, 5 s by default. A late or failing judge counts as wrong. This module
finds a judge, and tells its version, which is part of an evaluation's id.

docs/add-a-grader.md explains how to write one, also one that asks a language model.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from orchestrator.errors import refuse
from orchestrator.grading.gold import MATH, Gold
from orchestrator.user_code import named_function

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
