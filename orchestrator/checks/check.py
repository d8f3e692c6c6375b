"""Defines checks, and makes them: in this process, or each in a process of its own.

A check in a process of its own has a time limit and a log. A check that hangs is ended at its
limit, with all processes that it has started. A check that dies leaves nothing behind, and the next
one begins as usual.
"""

from __future__ import annotations

import faulthandler
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import psutil

from orchestrator.errors import UserError, one_line
from orchestrator.liveness.children import Child, ChildFailed, ChildLost, Parent, serve

CheckVerdict = Literal["ok", "warn", "fail", "skipped"]

MODULE = "orchestrator.checks.check"
ROUNDING_GIB = 0.1  # an excess over the granted memory up to this is no finding
LOOK_S = 0.2
KILLED_WITHIN_S = 20.0  # a GPU's driver may keep a killed process for some seconds
STANDS_AT = 0.9  # share of its limit after which a check prints a traceback of each thread


@dataclass(frozen=True)
class Found:
    """The finding of a check, whose first line stands alone, with its remedy and its `numbers`.

    `skipped`: the check says nothing about this machine, for the reason in `detail`.
    """

    verdict: CheckVerdict
    detail: str
    change: str = ""
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """One check: `run` takes the subject of all checks, and returns its finding.

    It is skipped if one of `needs`, earlier checks, has failed. `remedy` is shown if the check
    fails or warns without a remedy of its own. A check that is made in a process of its own is a
    function of a module, and has `limit_s` seconds.
    """

    name: str
    run: Callable[[Any], Found]
    needs: tuple[str, ...] = ()
    limit_s: float = 60.0
    remedy: str = ""


@dataclass(frozen=True)
class Checked(Found):
    """The finding of a check of this name, its seconds, and the file that holds all its output."""

    name: str = ""
    seconds: float = 0.0
    log: str | None = None  # None for a check that had no process of its own


def run_checks(
    checks: Sequence[Check], subject: Any, folder: Path | None = None
) -> Iterator[Checked]:
    """Make the checks in their order; yield each as soon as it is made.

    With a `folder`, which exists, each is made in a process of its own, whose log goes there.
    `subject` must then be plain data, since each process receives it.
    """
    stopped: dict[str, str] = {}
    for check in checks:
        missing = next((name for name in check.needs if name in stopped), None)
        if missing is not None:
            words = f"needs {missing}, which {stopped[missing]}"
            stopped[check.name] = "was not made"
            yield Checked("skipped", words, name=check.name)
            continue
        began = time.monotonic()
        log = None if folder is None else folder / f"{check.name}.log"
        found = made(check, subject) if log is None else _made_apart(check, subject, log)
        if found.verdict == "fail":
            stopped[check.name] = "failed"
        change = found.change or (check.remedy if found.verdict in ("warn", "fail") else "")
        seconds, where = time.monotonic() - began, None if log is None else str(log)
        yield Checked(
            found.verdict, found.detail, change, found.numbers, check.name, seconds, where
        )


def made(check: Check, subject: Any, traced: bool = False) -> Found:
    """Make a check in this process. An error is a finding, `traced` by a traceback on stderr."""
    try:
        return check.run(subject)
    except (Exception, SystemExit) as error:  # a library may even exit
        if traced:
            traceback.print_exc()
        message = one_line(error) or "no message"
        is_users = isinstance(error, UserError)  # such an error names its key and a remedy
        return Found("fail", message if is_users else f"{type(error).__name__}: {message}")


def required(check: Check, subject: Any) -> Found:
    """Make a check without which nothing begins; UserError if it fails."""
    found = check.run(subject)
    if found.verdict == "fail":
        raise UserError(found.detail)
    return found


def required_apart(check: Check, subject: Any, unmade: str) -> Found:
    """As `required`, in a process of its own; an error of the check is raised as it is.

    `unmade` begins the line of a check that fails, or whose process dies or takes too long.
    """
    with TemporaryDirectory() as folder:
        try:
            found = _made_apart(check, subject, Path(folder) / "log.txt", raises=True)
        except ChildFailed as failed:
            raise failed.error from None
    if found.verdict == "fail":
        raise UserError(f"{unmade}: {'; '.join(filter(None, [found.detail, found.change]))}")
    return found


# --- in a process of its own ---


def _made_apart(check: Check, subject: Any, log: Path, raises: bool = False) -> Found:
    """Make a check in a process, to its end or to its limit.

    An error of the check is a finding; with `raises` it is a ChildFailed.
    """
    began = time.monotonic()
    family: set[psutil.Process] = set()
    found: Found | None = None
    with log.open("wb+") as output:
        child = Child(MODULE, check.name, {"PYTHONUNBUFFERED": "1"}, output)
        try:
            child.send((check, subject, began + STANDS_AT * check.limit_s, raises))
            found = _await(child, began + check.limit_s, family)
        except ChildLost:
            pass
        except TimeoutError:
            late = f"not done after {check.limit_s:g} s, so it was ended"
            found = Found("fail", f"{late}{_last_line(log)}")
        finally:
            left = _end(child, family)
    found = found or _died(child.code, log)
    if left:
        there = f"; still there after {KILLED_WITHIN_S:.0f} s: process {', '.join(map(str, left))}"
        found = Found("fail", found.detail + there, found.change, found.numbers)
    return found


def _await(child: Child, deadline: float, family: set[psutil.Process]) -> Found:
    """Wait for the finding. Raises ChildLost if the process dies, TimeoutError at the deadline.

    Adds all processes that the check has started to `family`. Engines run in sessions of their own,
    and a process whose parent has died can be recognised only if it was seen before.
    """
    while (left := deadline - time.monotonic()) > 0:
        family |= _descendants(child)
        if wait([child], min(LOOK_S, left)):  # pyright: ignore[reportArgumentType]
            message = child.read()
            if isinstance(message, Found):
                return message
    raise TimeoutError


def _descendants(child: Child) -> set[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return set(psutil.Process(child.pid).children(recursive=True))
    return set()


def _end(child: Child, family: set[psutil.Process]) -> list[int]:
    """Kill the processes left by a check; return the ids of those that survive even that."""
    family |= _descendants(child)
    child.end()
    deadline = time.monotonic() + KILLED_WITHIN_S
    while (left := [each for each in family if is_alive(each)]) and time.monotonic() < deadline:
        for each in left:
            with suppress(psutil.Error):
                each.kill()
        time.sleep(0.05)
    survivors = [each.pid for each in left]
    return sorted([*survivors, child.pid] if child.alive() else survivors)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process has not ended; a zombie has."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _died(code: int | None, log: Path) -> Found:
    """The finding about a check whose process ended without an answer."""
    how = f"code {code}" if code is None or code >= 0 else signal.Signals(-code).name
    change = ""
    if how == "SIGKILL":  # this process kills only at the limit, so that the kernel did it
        change = "look for `Out of memory` in dmesg: the host's memory may be too small"
    return Found("fail", f"its process died with {how}{_last_line(log)}", change)


def _last_line(log: Path) -> str:
    """The last non-empty line of a log, in words that follow a sentence."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"; its last line: {lines[-1].strip()[:200]}" if lines else ""


def serve_check(call: tuple[Check, Any, float, bool], parent: Parent) -> None:
    """Make a check in its own process, and send the finding, or raise the check's error.

    The monotonic clock, which all processes share, tells when it prints where it stands.
    """
    check, subject, late_at, raises = call
    print(f"{check.name}, at most {check.limit_s:g} s", flush=True)
    faulthandler.dump_traceback_later(max(0.1, late_at - time.monotonic()))
    found = check.run(subject) if raises else made(check, subject, traced=True)
    print(found, flush=True)
    parent.send(found)


if __name__ == "__main__":
    # By the name under which the parent's pickles know this module's classes.
    from orchestrator.checks.check import serve_check as serve_by_name

    serve(serve_by_name)
