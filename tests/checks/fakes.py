"""Checks that do not look at anything: they are well, or go wrong in one way. Their subject is a
folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.checks.check import Check, Found
from orchestrator.errors import UserError

FOREVER = [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]


def well(folder: Path) -> Found:
    print("all is well", flush=True)
    print("and on the other stream", file=sys.stderr)
    return Found("ok", f"looked into {folder.name}", numbers={"gib": 1.5})


def slow(folder: Path) -> Found:
    return Found("warn", "slower than it should be")


def bad(folder: Path) -> Found:
    return Found("fail", "this is wrong", "a remedy of its own")


def passed_over(folder: Path) -> Found:
    return Found("skipped", "nothing to look at")


def raises(folder: Path) -> Found:
    raise ValueError("a sentence\nof two lines")


def refused(folder: Path) -> Found:
    raise UserError("engine.sampler: 'sglang': expected torch, or make setup-engines first")


def exits(folder: Path) -> Found:
    print("what it printed last", flush=True)
    os._exit(3)


def killed(folder: Path) -> Found:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def sleeps(subject: object) -> Found:
    time.sleep(3600)
    raise AssertionError


def hangs(folder: Path) -> Found:
    """It has started a process in a session of its own, as engines are, whose parent is gone; and
    ignores SIGTERM.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with subprocess.Popen([*FOREVER], start_new_session=True) as child:
        (folder / "pids").write_text(f"{os.getpid()} {child.pid}")
        time.sleep(3600)
    raise AssertionError


def leaves(folder: Path) -> Found:
    """It is over while a process that it has started lives, long enough to have been seen."""
    child = subprocess.Popen(FOREVER, start_new_session=True)
    (folder / "pids").write_text(str(child.pid))
    time.sleep(1.0)
    return Found("ok", "done")


def never(*arguments: object) -> None:
    """No check: one of several processes that does not come."""
    raise SystemExit(1)


def check(
    run: Callable[[Path], Found], limit_s: float = 300, name: str = "", needs: tuple[str, ...] = ()
) -> Check:
    """A check of one of the functions above, by default of its name."""
    named = run.__name__
    return Check(name or named, run, needs, limit_s, f"the remedy of {named}")
