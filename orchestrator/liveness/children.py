"""Child processes: the one protocol between a process and the processes that it starts.

A `Child` runs `python -m module`, whose main calls `serve`. It answers calls one after the other:
any number of messages to each, and at last the call's `Result` or its error. Five things hold for
every child:

- Its first call opens it, for example with the models that it holds; `serve` says how.
- Work that gets on gives signs of life (`heartbeat.advance`), so that the parent can limit the silence
  of a call and not its length. Each message and each sign is a piece of work of the parent, too.
- An error of a call comes back as `ChildFailed`, with the error itself and the child's traceback. A
  child that is gone or silent is ended and raises `ChildLost`, with the last lines it printed.
- A child leads a process group of its own. The group ends with `Child.end`, and within a second of
  the parent's end, whatever ended the parent.
- Messages are pickles, over a socket pair without a name: only the two processes can write to it.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, NoReturn

from orchestrator.errors import UserError
from orchestrator.liveness import heartbeat
from orchestrator.liveness.processes import group_members

ROOT = Path(__file__).resolve().parents[2]
LOOK_S = 0.5  # between two looks of a child at its parent, and at its own work
EXITS_WITHIN_S = 1.0  # time for a process that has closed its connection
ENDS_WITHIN_S = 10.0  # time for a killed group; a GPU's driver may hold one of its processes longer
PRINTED_BYTES = (
    20_000  # for the traceback of an engine's process, and those of two parents after it
)


@dataclass(frozen=True)
class Sign:
    """A sign of life: the child's work has got on."""


@dataclass(frozen=True)
class Result:
    """The end of a call, with the value that it returned."""

    value: Any


class ChildFailed(RuntimeError):
    """A call raised `error` in a child; `story` is the traceback there."""

    def __init__(self, error: Exception, story: str):
        super().__init__(error, story)  # the arguments with which pickle makes it again
        self.error, self.story = error, story

    def __str__(self) -> str:
        kind = "" if isinstance(self.error, UserError) else f"{type(self.error).__name__}: "
        return f"{kind}{self.error}"


class ChildLost(RuntimeError):
    """A child's process ended or was silent for too long; `printed` is the end of its output."""

    def __init__(self, message: str, printed: str):
        super().__init__(message)
        self.printed = printed


class Child:
    """A process, `python -m module`, and the connection to it. Messages call it `name`.

    `environment` is added to the environment of this process; a variable that is None is taken out
    of it. The child prints where this process does, or into `output`, a file that can be read.
    """

    def __init__(
        self,
        module: str,
        name: str,
        environment: Mapping[str, str | None] | None = None,
        output: IO[bytes] | int | None = None,
    ):
        self.name, self._output = name, output
        here, there = socket.socketpair()
        folders = [str(ROOT)]
        if own := os.environ.get("PYTHONPATH"):
            folders.append(own)
        paths = {"PYTHONPATH": os.pathsep.join(folders)}
        variables = {**os.environ, **(environment or {}), **paths}
        # -P, so that Python does not import a stray sympy.py from the current folder.
        command = [sys.executable, "-P", "-m", module, str(there.fileno()), str(os.getpid())]
        with there:
            self._process = subprocess.Popen(
                command,
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                env={name: value for name, value in variables.items() if value is not None},
                start_new_session=True,
            )
        self._connection = Connection(here.detach())

    @property
    def pid(self) -> int:
        """The id of its process, and of its process group."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code of its process, negative for a signal; None while it runs."""
        return self._process.poll()

    def alive(self) -> bool:
        """Whether its process still runs."""
        return self.code is None

    def fileno(self) -> int:
        """Its connection, for `multiprocessing.connection.wait`."""
        return self._connection.fileno()

    def send(self, call: Any) -> None:
        """Make a call. Raises ChildLost."""
        try:
            _send(self._connection, call)
        except OSError:
            raise self._lost("died") from None

    def ask(self, call: Any, silence_s: float | None = None) -> Any:
        """Make a call and return its result. Raises ChildFailed and ChildLost, as `receive`."""
        self.send(call)
        while not isinstance(message := self.receive(silence_s), Result):
            pass
        return message.value

    def receive(self, silence_s: float | None = None) -> Any:
        """The next message or `Result`.

        Raises ChildFailed if the call failed, and ChildLost if the process is gone or gave no sign
        of life for `silence_s`.
        """
        while isinstance(message := self.read(silence_s), Sign):
            pass
        return message

    def read(self, silence_s: float | None = None) -> Any:
        """As `receive`, signs of life included."""
        try:
            if not self._connection.poll(silence_s):
                raise self._lost(f"has been silent for {silence_s:.0f} s")
            message = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - see above
        except (EOFError, OSError):
            raise self._lost("died") from None
        heartbeat.advance()
        if isinstance(message, ChildFailed):
            message.error.add_note(f"in {self.name}:\n{message.story}")
            raise message
        return message

    def end(self) -> None:
        """End the process and all others of its group: an engine's may outlive their parent.

        Gives up waiting for a process that the kernel cannot end; a GPU's driver may hold it.
        """
        if self._connection.closed:
            return
        self._connection.close()
        with suppress(ProcessLookupError):  # the whole group is gone
            os.killpg(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + ENDS_WITHIN_S
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDS_WITHIN_S)
        while group_members(self.pid) and time.monotonic() < deadline:
            time.sleep(0.02)

    def _lost(self, how: str) -> ChildLost:
        """End what is left of the child; returns the error that says how it was lost."""
        if how == "died":
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(EXITS_WITHIN_S)
        self.end()
        return ChildLost(f"{self.name} {how}", self._printed())

    def _printed(self) -> str:
        if self._output is None or isinstance(self._output, int):
            return ""
        descriptor = self._output.fileno()
        start = max(0, os.fstat(descriptor).st_size - PRINTED_BYTES)
        return os.pread(descriptor, PRINTED_BYTES, start).decode(errors="replace")


def messages(children: Sequence[Child]) -> Iterator[tuple[int, Any]]:
    """Yield (index, message) of several children as each comes, until all have answered a call.

    The last message of a child is its `Result`, a ChildFailed or a ChildLost.
    """
    index_of = {child: index for index, child in enumerate(children)}
    while index_of:
        for child in wait(list(index_of)):  # pyright: ignore[reportArgumentType]
            assert isinstance(child, Child)
            try:
                message = child.read()
            except (ChildFailed, ChildLost) as error:
                message = error
            index = index_of[child]
            if isinstance(message, Result | ChildFailed | ChildLost):
                del index_of[child]
            yield index, message


class Parent:
    """The parent, as a child knows it. Safe to share between threads."""

    def __init__(self, descriptor: int, pid: int):
        self._connection, self._pid = Connection(descriptor), pid
        self._sending = threading.Lock()
        os.set_inheritable(descriptor, False)
        threading.Thread(target=self._watch, daemon=True, name="parent").start()

    def send(self, message: Any) -> None:
        """Send a message of the call that is being answered."""
        with self._sending:
            _send(self._connection, message)

    def receive(self) -> Any:
        """Wait for the next call. Raises EOFError or OSError once the parent listens no more."""
        return pickle.loads(self._connection.recv_bytes())  # noqa: S301 - see above

    def leave(self) -> None:
        """Close the connection in a fork of this process: it would keep the connection of a dead child open."""
        self._connection.close()

    def _watch(self) -> None:
        """Give signs of life; end the group once the parent is gone, even if this process hangs.

        The kernel gives a process another parent as soon as its own is gone. The kernel's signal
        for that (PR_SET_PDEATHSIG) does not serve, since it also comes when the parent goes on and
        only its thread that started the process has ended.
        """
        done = heartbeat.pieces()
        while os.getppid() == self._pid:
            time.sleep(LOOK_S)
            if heartbeat.pieces() != done:
                done = heartbeat.pieces()
                with suppress(OSError):  # the parent is ending this process, or is gone itself
                    self.send(Sign())
        _end_group()


def serve(open_child: Callable[[Any, Parent], Callable[[Any], Any] | None]) -> NoReturn:
    """Serve the process that started this one, until it closes the connection or is gone.

    `open_child(call, parent)` answers the first call, and returns the function that answers the
    later ones; None if the first call is the only one. Both functions may send messages.
    """
    parent = Parent(int(sys.argv[1]), int(sys.argv[2]))
    answer: Callable[[Any], Any] | None = None
    while True:
        value = None
        try:
            call = parent.receive()
        except (EOFError, OSError):
            _end_group()
        try:
            if answer is None:
                answer = open_child(call, parent)
            else:
                value = answer(call)
            ended = Result(value)
        except Exception as error:  # of any kind; the parent decides what follows
            ended = _failed(error)
        try:
            parent.send(ended)
        except OSError:
            _end_group()


def _end_group() -> NoReturn:
    """End this process, without its handlers, and the processes that it started."""
    os.killpg(os.getpgid(0), signal.SIGKILL)
    raise AssertionError("killed")


def _failed(error: Exception) -> ChildFailed:
    """The error for the parent, or its text where it cannot be pickled."""
    story = traceback.format_exc().rstrip()
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made in this line
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return ChildFailed(error, story)


def _send(connection: Connection, message: Any) -> None:
    """Send a pickle; `Connection.send` would share the memory of tensors through descriptors."""
    connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))
