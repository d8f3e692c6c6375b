"""The process of one check: `python -m orchestrator.selftest.process FD PARENT`.

The runner sends the function and its subject over the socket FD, and the process answers with a
`Found`. Its output goes into the check's log; shortly before its limit it prints a traceback of
each thread. It ends when PARENT does.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection

from orchestrator.errors import UserError, one_line
from orchestrator.selftest.runner import Found
from orchestrator.start_up import quick_imports

LOOK_S = 0.5
STANDS_AT = 0.9  # share of its limit after which a check prints tracebacks


def main() -> None:
    parent = int(sys.argv[2])
    threading.Thread(target=_end_with, args=(parent,), name="parent", daemon=True).start()
    with Connection(int(sys.argv[1])) as connection:
        function, subject, limit_s = connection.recv()
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
        connection.send(found)


def failure(error: BaseException) -> Found:
    """The finding about a check that an error ended. A UserError brings its own remedy."""
    what = one_line(error) or "no message"
    return Found(
        "fail", what if isinstance(error, UserError) else f"{type(error).__name__}: {what}"
    )


def _end_with(parent: int) -> None:
    """End this process and its group once the command is gone, even if a check hangs here."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main()
