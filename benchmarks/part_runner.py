"""Long measurements in parts: each part is a process of its own, with a limit of time, a whole log
and its own result.

A part is a command. It gets the path of a JSON file as its last argument, which it may replace by
what it has measured so far, as often as it likes. Once the part has ended, `<folder>/<part>.json`
takes its place, and the next call leaves the part out. A hang, a kill or Ctrl-C thus loses no more
than the part that was running.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.liveness.driver_death import Process, processes
from orchestrator.records.files import write_atomically

LOOK_S = 0.5
TRACE_S = 1.0  # for the threads' stacks to reach the log
ENDED_WITHIN_S = 60.0  # a process that holds a GPU's memory needs a while to be gone
SHORTEST_S = 20.0  # with less time left no part is begun
LAST_BYTES = 100_000  # of a log in which the reason of a failure is looked for
EVERY_MS = 100  # between two readings of the GPU's memory in use
MIB_OF_A_GIB = 1024
TRACE = signal.SIGUSR1  # asks a part for the stacks of its threads


@dataclass(frozen=True)
class Part:
    """A command with its limit in seconds. If it fails and is `needed`, no other part is begun."""

    name: str
    limit_s: float
    command: Sequence[str]
    needed: bool = False


@dataclass(frozen=True)
class Result:
    """The outcome of a part: its numbers, where it was measured, how long it took, and why it
    failed if it did.

    `device_peak_gib` is the largest use of the GPU by all processes while it ran, None if
    unknown.
    """

    part: str
    measured: Mapping[str, float]
    where: Mapping[str, str]
    seconds: float
    failure: str | None = None
    device_peak_gib: float | None = None


@dataclass
class Runner:
    """Runs the parts that have no result in `folder` yet.

    A result counts if it was measured in the same `place`: the card and the versions, by name.
    `commit` is noted, but a part that another commit has measured is not measured again. `say` gets
    a line about each part.
    """

    folder: Path
    place: Mapping[str, str]
    commit: str
    say: Callable[[str], None]
    total_s: float
    _ends: float = field(init=False, default=0.0)

    def run(self, parts: Iterable[Part], again: Collection[str] = ()) -> None:
        """Run what is missing or has failed, and those of `again`, until `total_s` seconds are
        over.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ends = time.monotonic() + self.total_s
        for part in parts:
            known = self.result(part.name)
            if known is not None and known.failure is None and part.name not in again:
                self.say(f"{part.name}: measured before")
                continue
            left = self._ends - time.monotonic()
            if left < SHORTEST_S:
                self.say(f"{part.name}: not begun, the {self.total_s / 60:.0f} minutes are over")
                continue
            result = self._measure(part, min(part.limit_s, left))
            write_atomically(self._path(part.name), json.dumps(asdict(result), indent=2) + "\n")
            took = f"{part.name}: {result.seconds:.0f} s"
            self.say(took if result.failure is None else f"{took}, FAILED: {result.failure}")
            if part.needed and result.failure is not None:
                return

    def result(self, part: str) -> Result | None:
        """The stored result of a part in this place; None without one."""
        with suppress(FileNotFoundError, ValueError):
            result = Result(**json.loads(self._path(part).read_text(encoding="utf-8")))
            if {name: result.where.get(name) for name in self.place} == dict(self.place):
                return result
        return None

    def log(self, part: str) -> Path:
        """All that the part has printed."""
        return self.folder / f"{part}.log"

    def _path(self, part: str) -> Path:
        return self.folder / f"{part}.json"

    def _measure(self, part: Part, limit_s: float) -> Result:
        """Run one part to its end, or to its limit; nothing of it is left afterwards."""
        so_far = self.folder / f"{part.name}.so_far.json"
        so_far.unlink(missing_ok=True)
        family: set[Process] = set()
        started = time.monotonic()
        with self.log(part.name).open("wb") as log, DeviceUse() as use:
            # A session of its own: Ctrl-C in the terminal is for the runner.
            process = subprocess.Popen(
                [*part.command, str(so_far)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                while process.poll() is None and time.monotonic() - started < limit_s:
                    family |= descendants(process.pid)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(LOOK_S)
                late = process.poll() is None
                if late:
                    process.send_signal(TRACE)
                    time.sleep(TRACE_S)
                    copy_hidden_output(family, log)
            finally:
                left = end(process, family)
        failure = None
        if late:
            failure = f"ended at its limit of {limit_s:.0f} s"
        elif process.returncode:
            failure = reason(self.log(part.name), process.returncode)
        if left:
            failure = f"{failure or 'done'}; {left} of its processes cannot be ended"
        if failure is not None:
            failure = f"{failure} — {self.log(part.name)}"
        measured = json.loads(so_far.read_text(encoding="utf-8")) if so_far.exists() else {}
        so_far.unlink(missing_ok=True)
        seconds = round(time.monotonic() - started, 1)
        where = {**self.place, "commit": self.commit}
        return Result(part.name, measured, where, seconds, failure, use.peak_gib)


def descendants(pid: int) -> set[Process]:
    """All descendants of a process whose parents are alive."""
    alive = processes()
    found: set[int] = {pid}
    before = 0
    while len(found) > before:
        before = len(found)
        found |= {each.pid for each in alive.values() if each.parent in found}
    return {alive[each] for each in found - {pid} if each in alive}


def copy_hidden_output(family: Iterable[Process], log: BinaryIO) -> None:
    """Copy what processes have printed into files without a name, as engines do; it is gone once
    they are.
    """
    copied: set[tuple[int, int]] = set()
    for each in sorted(family, key=lambda process: process.born):
        with suppress(OSError):  # it has ended meanwhile
            path = Path(f"/proc/{each.pid}/fd/1")
            file = path.stat()
            if file.st_nlink == 0 and (file.st_dev, file.st_ino) not in copied:
                copied.add((file.st_dev, file.st_ino))
                log.write(
                    f"--- process {each.pid} has printed\n".encode() + path.read_bytes() + b"\n"
                )
    log.flush()


def end(process: subprocess.Popen[bytes], family: set[Process]) -> int:
    """Kill a part's process group and all that has descended from it; how many live on
    nevertheless.

    Engines and clusters have sessions of their own. `family` are those that were seen while their
    parents lived.
    """
    family |= descendants(process.pid)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + ENDED_WITHIN_S
    while True:
        alive = set(processes().values())
        left = family & alive
        for each in left:
            with suppress(ProcessLookupError, PermissionError):
                family |= descendants(each.pid)
                os.kill(each.pid, signal.SIGKILL)
        if not left or time.monotonic() > deadline:
            return len(left)
        time.sleep(0.1)


def reason(log: Path, status: int) -> str:
    """The line of an error that ended a part: libraries may say more after it while the process
    ends.
    """
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
    errors = [
        line for line in lines if re.match(r"[\w.]+(Error|Lost|NotFinite|Refused|Failed)\b", line)
    ]
    if errors:
        return errors[-1]
    how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    return f"{how}: {lines[-1]}" if lines else how


# --- in a part's own process ---


def prepare_part() -> None:
    """End this process group when the runner is gone, however it ended, and show stacks when the
    runner asks.
    """
    faulthandler.enable()
    faulthandler.register(TRACE)
    runner = os.getppid()

    def watch() -> None:
        while os.getppid() == runner:
            time.sleep(LOOK_S)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="runner", daemon=True).start()


def write_so_far(path: Path, measured: Mapping[str, Any]) -> None:
    """Hand the runner the numbers that a part has measured so far."""
    write_atomically(path, json.dumps(measured), durable=False)


# --- the GPU's memory that all processes use together, as its driver tells ---
#
# Never run on a GPU: in the test a stand-in takes the place of `nvidia-smi`.


def ask_driver(*fields: str) -> list[str] | None:
    """Fields of `nvidia-smi --query-gpu` of the first GPU that this process may use; None where
    there is none.
    """
    command = _query(",".join(fields))
    if command is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (
        [value.strip() for value in done.stdout.strip().split(",")]
        if done.returncode == 0
        else None
    )


def _query(fields: str) -> list[str] | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    return [program, f"--id={first}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]


class DeviceUse:
    """The largest use of the GPU's memory while it is open, looked at ten times a second."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._peak_mib: float | None = None

    def __enter__(self) -> DeviceUse:
        command = _query("memory.used")
        if command is not None:
            quiet = subprocess.DEVNULL
            self._process = subprocess.Popen(
                [*command, f"--loop-ms={EVERY_MS}"],
                stdin=quiet,
                stdout=subprocess.PIPE,
                stderr=quiet,
                text=True,
            )
            self._thread = threading.Thread(target=self._read, name="nvidia-smi", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._thread is not None:
            self._process.kill()
            self._process.wait()
            self._thread.join()
            if self._process.stdout is not None:
                self._process.stdout.close()

    @property
    def peak_gib(self) -> float | None:
        """GiB since it was opened or `forget` was called; None where it is unknown."""
        return None if self._peak_mib is None else self._peak_mib / MIB_OF_A_GIB

    def forget(self) -> None:
        """Begin anew."""
        self._peak_mib = None

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):  # "[N/A]", or what a driver that fails says
                self._peak_mib = max(self._peak_mib or 0.0, float(line))
