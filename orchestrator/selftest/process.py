"""The process of one check, a child of the runner (`liveness.children`).

Its only call is the name of a function, its subject and its limit in seconds; its message is a
`Found`. Its output goes into the check's log; shortly before its limit it prints a traceback of
each thread.
"""

from __future__ import annotations

import faulthandler
import importlib
import traceback
from typing import Any

from orchestrator.errors import UserError, one_line
from orchestrator.liveness.children import Parent, serve
from orchestrator.selftest.runner import Found
from orchestrator.start_up import quick_imports

STANDS_AT = 0.9  # share of its limit after which a check prints tracebacks


def run_check(call: tuple[str, Any, float], parent: Parent) -> None:
    """Make a check and send its finding, also if an error ends it."""
    function, subject, limit_s = call
    print(f"{function}, at most {limit_s:g} s", flush=True)
    faulthandler.dump_traceback_later(STANDS_AT * limit_s)
    module, _, name = function.partition(":")
    try:
        with quick_imports():
            check = getattr(importlib.import_module(module), name)
        found = check(subject)
    except BaseException as error:  # a library may even exit
        traceback.print_exc()
        found = failure(error)
    print(found, flush=True)
    parent.send(found)


def failure(error: BaseException) -> Found:
    """The finding about a check that an error ended. A UserError brings its own remedy."""
    what = one_line(error) or "no message"
    return Found(
        "fail", what if isinstance(error, UserError) else f"{type(error).__name__}: {what}"
    )


if __name__ == "__main__":
    serve(run_check)
