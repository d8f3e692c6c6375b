"""Leases: one process at a time has a unit, a slice of an evaluation, or the driving of a sweep.

A lease is a file in `.locks/` of the runs folder. Between processes of one host the kernel's lock
on it decides, which the kernel frees however its process ends. Some shared file systems do not carry
such a lock to other hosts. The holder therefore notes itself in the file and touches it every
HEARTBEAT_S: a note of another host on a file that was touched within STALE_AFTER_S means that the
lease is taken. The note of a host that died looks alive until then, and a sweep therefore asks again
for LEASE_PATIENCE_S.

The heartbeat keeps other hosts out while the holder works. Two hosts that find a stale note in the
same instant could both take it; only the lock, where the file system carries it, excludes that.

`holder_of` only reads the note, which needs no lock and, on the holder's host, no write access.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from orchestrator.errors import LeaseHeld, UserError
from orchestrator.liveness.processes import process_stat, take_lock

HEARTBEAT_S = 15.0
STALE_AFTER_S = 90.0
# A killed predecessor's processes may still hold the unit, and a dead host's heartbeat looks alive
# for a while.
LEASE_PATIENCE_S = STALE_AFTER_S + 2 * HEARTBEAT_S


@dataclass(frozen=True)
class Holder:
    """The process that holds a lease; `started` tells it from a later process with its id.

    `attempt` counts the holders in a row that died without releasing the lease, and this one.
    `space` is the Linux namespace of `pid`: a container with its host's name has ids of its own.
    """

    host: str
    pid: int
    started: str | None = None
    attempt: int = field(default=1, compare=False)
    space: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_here(self) -> bool:
        """Whether this process can look it up by its pid."""
        return self.on_this_host and self.space in (None, _space())

    @property
    def on_this_host(self) -> bool:
        """Whether this host's kernel holds its locks."""
        return self.host == socket.gethostname()


class Lease:
    """Held from construction until `release` or the end of the process. Raises LeaseHeld."""

    def __init__(self, path: Path):
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Appending, so that opening it neither empties the holder's note nor counts as a
            # heartbeat.
            self._file = path.open("a+")
        except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
            raise UserError(f"{path}: cannot be locked ({error.strerror}); remove it") from None
        if not take_lock(self._file, wait=False):
            self._file.close()
            raise LeaseHeld(f"{path.stem} is being run by {_holder(path) or 'another process'}")
        # This process has the lock, so a process of this host that left a note is gone. A process
        # of another host may still run, since its lock may not reach here: its heartbeat decides,
        # by the clock of the file system that stamps it.
        holder = _holder(path)
        if holder and not holder.on_this_host and _beats(path, _file_system_time(path.parent)):
            self._file.close()
            raise LeaseHeld(f"{path.stem} is being run by {holder}")
        self.attempt = holder.attempt + 1 if holder else 1
        self._file.truncate(0)
        note = Holder(
            socket.gethostname(), os.getpid(), _start_of(os.getpid()), self.attempt, _space()
        )
        self._file.write(json.dumps(asdict(note)))
        self._file.flush()
        self._ended = threading.Event()
        threading.Thread(target=self._beat, daemon=True, name="lease").start()

    def release(self, remove: bool = False) -> None:
        """Let others work on the unit. The note goes before the lock: no reader sees a past holder.

        `remove` deletes the file, too. If one process has opened the deleted file while another
        makes a new one, both hold the lease: `remove` is for work that may be done twice.
        """
        self._ended.set()
        if not self._file.closed:
            self._file.truncate(0)
            if remove:
                self.path.unlink(missing_ok=True)
            self._file.close()

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            with suppress(FileNotFoundError):  # removed by hand, or released in this instant
                os.utime(self.path)


def holder_of(path: Path) -> Holder | None:
    """The process that holds the lease now, by its file; None also for a file of another form.

    A holder on this host is looked up. A holder on another host or in another container counts
    while it beats, by the clock that stamps its beats; by this host's clock only if the folder
    cannot be written to.
    """
    holder = _holder(path)
    if holder is None:
        return None
    if holder.is_here:
        return holder if _runs(holder) else None
    try:
        now = _file_system_time(path.parent)
    except OSError:
        now = time.time()
    return holder if _beats(path, now) else None


def _holder(path: Path) -> Holder | None:
    """The note in the file; None if it holds none, or anything else."""
    try:
        note = json.loads(path.read_bytes())
        host, pid, attempt = note["host"], note["pid"], note.get("attempt", 1)
        holder = Holder(host, pid, note.get("started"), attempt, note.get("space"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    valid = type(host) is str and type(pid) is int and pid > 0 and type(attempt) is int
    return holder if valid else None


def _space() -> str | None:
    """The namespace of process ids here, `pid:[4026531836]`; None on systems other than Linux."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _runs(holder: Holder) -> bool:
    """Whether the process of this host that wrote the note still runs.

    A later process may have its pid, but not its start.
    """
    try:
        os.kill(holder.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        pass
    start = _start_of(holder.pid)
    return start is None or holder.started is None or start == holder.started


def _start_of(pid: int) -> str | None:
    """When a process started, in clock ticks since the host did.

    Empty if it has ended and waits to be reaped, None if it is gone or the system does not say.
    """
    stat = process_stat(pid)
    if stat is None:
        return None
    return "" if stat[0] in ("Z", "X") else stat[19]


def _beats(path: Path, now: float) -> bool:
    """Whether the holder touched the file lately."""
    try:
        return now - path.stat().st_mtime < STALE_AFTER_S
    except OSError:
        return False


def _file_system_time(folder: Path) -> float:
    """The time by the clock that stamps files in `folder`; a file server has its own clock."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime


# --- claims: no two evaluators sample the same slice ---
#
# A claim is removed when the slice is there. The next evaluator takes over the claim of a process
# that died, and the claim counts such takeovers. Claims only save work: should two evaluators sample
# one slice all the same, the first file written counts (`records.writer.write_slice`).


@dataclass(frozen=True)
class Held:
    """The claim of `holder` on a slice of an evaluation, at the checkpoint after `step` steps."""

    evaluation_id: str
    step: int
    holder: Holder


class Claims:
    """The claims on slices of a runs folder."""

    def __init__(self, runs: Path):
        self._locks = runs / ".locks"

    def take(self, unit_id: str, evaluation_id: str, step: int, part: str) -> Lease | None:
        """Claim the slice whose file is named `part`; None while another process has it."""
        name = f"{evaluation_id}.step_{step:06d}.{part.removesuffix('.jsonl')}.claim"
        try:
            return Lease(self._locks / unit_id / name)
        except LeaseHeld:
            return None

    def held(self, unit_id: str) -> list[Held]:
        """The slices of a unit that processes work on now."""
        held = []
        for path in self._files(unit_id):
            evaluation_id, step, _ = path.name.split(".", 2)
            holder = holder_of(path)
            if holder is not None:
                held.append(Held(evaluation_id, int(step.removeprefix("step_")), holder))
        return held

    def forget_lost(self, unit_id: str) -> None:
        """Remove the claims of dead processes, and with them the count of their attempts."""
        for path in self._files(unit_id):
            if holder_of(path) is None:
                path.unlink(missing_ok=True)

    def _files(self, unit_id: str) -> list[Path]:
        return sorted((self._locks / unit_id).glob("*.claim"))


# --- drivers: who runs a sweep, and how to ask it to stop ---
#
# Each `trb submit` holds a lease. A request of `trb cancel` is a file beside it, which reaches a
# driver on any machine that sees the folder, without a port.

ASKED_EVERY_S = 1.0  # a driver looks for a request
LEASE, REQUEST = ".lease", ".stop"


@dataclass(frozen=True)
class Driver:
    """A driver and the file of its lease."""

    holder: Holder
    path: Path

    def ask_to_stop(self) -> None:
        """Leave the request; the driver sees it within ASKED_EVERY_S seconds."""
        self.path.with_suffix(REQUEST).touch()

    @property
    def runs(self) -> bool:
        """Whether it still runs."""
        return holder_of(self.path) == self.holder


class Driving:
    """Shows that this process drives the experiment `name`, until `end`. A request calls `stop`."""

    def __init__(self, runs: Path, name: str, stop: Callable[[], None]):
        folder = _folder(runs)
        self._lease = Lease(folder / f"{name}.{socket.gethostname()}.{os.getpid()}{LEASE}")
        self._request = self._lease.path.with_suffix(REQUEST)
        self._request.unlink(missing_ok=True)  # was for an earlier process with this id
        self._stop, self._ended = stop, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True, name="driver")
        self._thread.start()

    def end(self) -> None:
        """Give up the lease, so that `drivers_of` no longer lists this driver."""
        self._ended.set()
        self._thread.join()
        self._lease.release(remove=True)
        self._answer()  # to a request that came since the last look

    def _look(self) -> None:
        while not self._ended.wait(ASKED_EVERY_S):
            self._answer()

    def _answer(self) -> None:
        if self._request.exists():
            self._request.unlink(missing_ok=True)
            self._stop()


def drivers_of(runs: Path, name: str) -> list[Driver]:
    """List the processes that drive the experiment of that name now."""
    drivers = []
    for path in sorted(_folder(runs).glob(f"{name}.*{LEASE}")):
        holder = holder_of(path)
        # A name may hold dots: the pattern for `a` also matches the lease of `a.b`.
        if holder is not None and path.name == f"{name}.{holder.host}.{holder.pid}{LEASE}":
            drivers.append(Driver(holder, path))
    return drivers


def _folder(runs: Path) -> Path:
    return runs / ".locks" / "submits"
