"""Runs checks one after the other, each in its own process group with a time limit and a log.

The runner ends a check that hangs at its limit, with all processes that the check has started. A
check that dies leaves nothing behind, and the next check begins as usual. The finding of a check
comes back as a message of the check's process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal

from orchestrator.liveness.children import Child, ChildLost
from orchestrator.liveness.processes import Process, descendants, processes

Verdict = Literal["ok", "warn", "fail", "skipped"]

MODULE = "orchestrator.selftest.process"
LOOK_S = 0.2
KILLED_WITHIN_S = 20.0  # a GPU's driver may keep a killed process for some seconds


@dataclass(frozen=True)
class Found:
    """The finding of a check in one line, with its remedy (`change`) and its `numbers`.

    `skipped`: the check says nothing about this machine, for the reason in `detail`.
    """

    verdict: Verdict
    detail: str
    change: str = ""
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """One check: `function`, as `module:name`, takes the subject of all checks, returns `Found`.

    It is skipped if one of `needs`, earlier checks, has failed. `remedy` is shown if the check
    fails or warns without a remedy of its own.
    """

    name: str
    function: str
    limit_s: float
    remedy: str
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The outcome of a check: its finding, its seconds, and the file that holds all its output."""

    name: str
    verdict: Verdict
    detail: str
    change: str
    seconds: float
    log: str | None  # None for a check that was not begun
    numbers: dict[str, float]


def run_checks(checks: Sequence[Check], subject: Any, folder: Path) -> Iterator[Outcome]:
    """Yield the outcome of each check as soon as it is known. Logs go into `folder`, which exists.

    `subject` must be plain data: each check's process receives it.
    """
    stopped: dict[str, str] = {}
    for check in checks:
        missing = [name for name in check.needs if name in stopped]
        if missing:
            words = f"needs {missing[0]}, which {stopped[missing[0]]}"
            outcome = Outcome(check.name, "skipped", words, "", 0.0, None, {})
            stopped[check.name] = "was not made"
        else:
            outcome = _run(check, subject, folder / f"{check.name}.log")
            if outcome.verdict == "fail":
                stopped[check.name] = "failed"
        yield outcome


def _run(check: Check, subject: Any, log: Path) -> Outcome:
    """Run one check to its end or to its limit."""
    began = time.monotonic()
    family: set[Process] = set()
    found = None
    late = False
    with log.open("wb+") as output:
        child = Child(MODULE, check.name, {"PYTHONUNBUFFERED": "1"}, output)
        try:
            child.send((check.function, subject, check.limit_s))
            found = _await(child, began + check.limit_s, family)
        except ChildLost:
            pass
        except TimeoutError:
            late = True
        finally:
            left = _end(child, family)
    if late:
        found = Found(
            "fail", f"not done after {check.limit_s:g} s, so it was ended{_last_line(log)}"
        )
    elif found is None:
        found = _died(child.code, log)
    detail = found.detail
    if left:
        detail += (
            f"; still there after {KILLED_WITHIN_S:.0f} s: process {', '.join(map(str, left))}"
        )
    verdict = "fail" if left else found.verdict
    change = found.change or (check.remedy if verdict in ("warn", "fail") else "")
    return Outcome(
        check.name, verdict, detail, change, time.monotonic() - began, str(log), found.numbers
    )


def _await(child: Child, deadline: float, family: set[Process]) -> Found:
    """Wait for the finding. Raises ChildLost if the process dies, TimeoutError at the deadline.

    Adds all processes that the check has started to `family`. Engines run in sessions of their own,
    and a process whose parent has died can be recognised only if it was seen before.
    """
    while (left := deadline - time.monotonic()) > 0:
        family |= descendants([child.pid], processes().values())
        if wait([child], min(LOOK_S, left)):  # pyright: ignore[reportArgumentType]
            message = child.read()
            if isinstance(message, Found):
                return message
    raise TimeoutError


def _end(child: Child, family: set[Process]) -> list[int]:
    """Kill the processes left by a check; return the ids of those that survive even that."""
    family |= descendants([child.pid], processes().values())
    child.end()
    deadline = time.monotonic() + KILLED_WITHIN_S
    while left := family & set(processes().values()):
        if time.monotonic() > deadline:
            break
        for each in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(each.pid, signal.SIGKILL)
        time.sleep(0.05)
    survivors = {each.pid for each in left}
    return sorted(survivors | {child.pid} if child.alive() else survivors)


def _died(code: int | None, log: Path) -> Found:
    """The finding about a check whose process ended without an answer."""
    how = f"code {code}" if code is None or code >= 0 else signal.Signals(-code).name
    change = ""
    if how == "SIGKILL":  # the runner itself kills only at the limit, so that the kernel did it
        change = "look for `Out of memory` in dmesg: the host's memory may be too small"
    return Found("fail", f"its process died with {how}{_last_line(log)}", change)


def _last_line(log: Path) -> str:
    """The last non-empty line of a log, in words that follow a sentence."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"; its last line: {lines[-1].strip()[:200]}" if lines else ""
