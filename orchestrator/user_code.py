"""Finds functions that an experiment names as `module:function`: a user's grader or tracker."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

from orchestrator.errors import did_you_mean, refuse


def named_function(
    key: str, name: str, shipped: Collection[str]
) -> tuple[Callable[..., Any], ModuleType]:
    """The function called `module:function`, and its module.

    Raises UserError that names `key` where Python finds none; `shipped` are the names that the
    program has itself, for the message.
    """
    module_name, colon, function_name = name.partition(":")
    if not (colon and module_name and function_name):
        words = f"one of {', '.join(shipped)}, or module:function"
        raise refuse(key, name, words + did_you_mean(name, shipped))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the module is a user's, and may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise refuse(
            key, name, f"a module that Python can import ({reason}); PYTHONPATH names its folder"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise refuse(key, name, f"a function of {module_name}, which has no {function_name}")
    return function, module
