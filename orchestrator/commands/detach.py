"""`trb submit --detach` and `trb cancel`: a sweep that outlives the terminal, and its end.

On this machine the driver is a process in a session of its own; with `--address http://…` it is a
job of Ray's job server, on the cluster. Either is stopped by a request in the runs folder
(`liveness.leases`), as by Ctrl-C. A submit in a pipe goes on without the pipe's reader.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from orchestrator.checks.preflight import runs_folder
from orchestrator.commands.arguments import Parser, add_experiment, load
from orchestrator.errors import UserError
from orchestrator.liveness.leases import drivers_of
from orchestrator.selection.study import Study

LOOK_S = 0.2
TRB = [sys.executable, "-c", "from orchestrator.cli import main; main()"]

Say = Callable[[str], None]


def detach(study: Study, options: list[str], say: Say) -> int:
    """Submit in the background; 0 as soon as that process drives the sweep, else its exit code."""
    runs_folder(study.runs)
    log = study.runs / ".submits" / f"{_name(study)}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [*TRB, "submit", *study.invocation.words, *options]
    with log.open("ab") as output:
        # A session of its own: the end of this terminal, and its Ctrl-C, are not for it.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while process.poll() is None:
            for driver in drivers_of(study.runs, study.experiment.name):
                if driver.holder.is_here and driver.holder.pid == process.pid:
                    say(f"process {process.pid} goes on in the background; its output: {log}")
                    _say_commands(study, say)
                    return 0
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise
    ended = log.read_text(encoding="utf-8", errors="replace")
    print(ended, end="", file=sys.stderr if process.returncode else sys.stdout)
    return process.returncode


def detach_as_job(study: Study, address: str, options: list[str], say: Say) -> int:
    """Hand the sweep to the job server of a Ray cluster; 0 as soon as it has the job.

    The cluster's machines must see this folder, the experiment's file and the runs.
    """
    from orchestrator.sweep.cluster import submit_job

    runs_folder(study.runs)
    trb = Path(sys.executable).parent / "trb"
    program = str(trb) if trb.exists() else "trb"
    words = [program, "submit", *study.invocation.words, *options, "--address", "auto"]
    entrypoint = f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(words)}"
    job = submit_job(address, entrypoint, f"trb-{_name(study)}")
    say(f"job {job} of {address}; its output: ray job logs --address {address} --follow {job}")
    _say_commands(study, say)
    return 0


def add_cancel(parser: Parser) -> None:
    add_experiment(parser)


def run_cancel(options: argparse.Namespace) -> int:
    return cancel(load(options), print)


def cancel(study: Study, say: Say) -> int:
    """Ask every driver of the experiment to stop, and wait until it has; UserError without any."""
    drivers = drivers_of(study.runs, study.experiment.name)
    if not drivers:
        raise UserError(
            f"{study.experiment.name}: nothing to cancel; no trb submit of it runs in {study.runs}"
        )
    for driver in drivers:
        driver.ask_to_stop()
        say(f"{driver.holder} was asked to stop; what is committed stays")
    while any(driver.runs for driver in drivers):
        time.sleep(LOOK_S)
    say(f"stopped; go on with: {study.invocation.command('submit')}")
    return 0


def _name(study: Study) -> str:
    """`quickstart-20260131T120000Z`: names one submit."""
    return f"{study.experiment.name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def _say_commands(study: Study, say: Say) -> None:
    say(f"where it is: {study.invocation.command('status')}")
    say(f"its units:   {study.invocation.command('logs', '--follow')}")
    say(f"stop it:     {study.invocation.command('cancel')}")


# --- standard output that outlives its reader ---


class LastingOutput:
    """Standard output that outlives its reader: once a pipe is closed, further text goes nowhere.

    A sweep of days must not die because `head` has seen enough. Not an `io.TextIOBase`, whose
    finalizer would flush a stream that belongs to others and may be closed by then.
    """

    def __init__(self, stream: TextIO, on_end: Callable[[], None]):
        self._stream, self._on_end = stream, on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._leave()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._leave()

    def _leave(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        self._on_end()


def lasting_console(runs: Path) -> Console:
    """A console on standard output for a sweep in `runs`, which goes on when its reader is gone."""

    def note() -> None:
        print(
            f"trb: the reader of the output is gone; the sweep goes on in {runs}", file=sys.stderr
        )

    return Console(file=LastingOutput(sys.stdout, note))  # pyright: ignore[reportArgumentType]
