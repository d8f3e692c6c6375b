"""All ranks behind one object: one in this process, or several in child processes on this machine.

Several ranks are children of the training process, with one GPU each of its placement group's
bundle. They end with it, however it ends. A lost rank takes its shard of the model with it: the
others are then ended, too, and RankLost is raised. The unit's next attempt begins at its last
commit.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol, TypeVar

from safetensors.torch import load_file
from torch import Tensor

from orchestrator.engines.verl.messages import Progress, RankAnswer, RankFailure, receive, send
from orchestrator.engines.verl.rank import Rank
from orchestrator.errors import RankLost
from orchestrator.records import pulse

MODULE = "orchestrator.engines.verl.member"
PACKAGE_ROOT = Path(__file__).resolve().parents[3]
# The failure of other ranks in a collective may be noticed before the killed rank that caused it.
DEATH_IS_SEEN_S = 2.0
Result = TypeVar("Result")


class Ranks(Protocol):
    """The ranks, as trainer and scorer call them."""

    size: int

    def call(self, method: Callable[..., Result], *arguments: Any) -> list[Result]:
        """Call `method`, a function of `Rank`, on all ranks with the same arguments.

        Returns the results in order.
        """
        ...

    def call_each(
        self, method: Callable[..., Result], shares: Sequence[Any], *arguments: Any
    ) -> list[Result]:
        """As `call`, with each rank's own share before the other arguments."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """The weights of the student in training, by Hugging Face name, in the forward pass's
        dtype.
        """
        ...

    def close(self) -> None: ...


class OneRank:
    """The only rank, in this process."""

    size = 1

    def __init__(self) -> None:
        self._rank: Rank | None = Rank()

    def call(self, method: Callable[..., Result], *arguments: Any) -> list[Result]:
        return [method(self._rank, *arguments)]

    def call_each(
        self, method: Callable[..., Result], shares: Sequence[Any], *arguments: Any
    ) -> list[Result]:
        (share,) = shares
        return [method(self._rank, share, *arguments)]

    def weights(self) -> dict[str, Tensor]:
        (weights,) = self.call(Rank.weights)
        return weights

    def close(self) -> None:
        self._rank = None


class SeveralRanks:
    """`size` ranks, in processes that end with this one."""

    def __init__(self, size: int):
        self.size = size
        self._meeting = tempfile.TemporaryDirectory(prefix="trb-ranks-")
        self._connections: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._end = weakref.finalize(self, _end, self._processes, self._connections, self._meeting)
        for _ in range(size):
            connection, process = _start()
            self._connections.append(connection)
            self._processes.append(process)
        self._ask([(number, size, self._meeting.name) for number in range(size)])

    def call(self, method: Callable[..., Result], *arguments: Any) -> list[Result]:
        return self._ask([(method, arguments)] * self.size)

    def call_each(
        self, method: Callable[..., Result], shares: Sequence[Any], *arguments: Any
    ) -> list[Result]:
        return self._ask([(method, (share, *arguments)) for share in shares])

    def weights(self) -> dict[str, Tensor]:
        held = self.call(Rank.hold_weights)
        weights: dict[str, Tensor] = {}
        for pid, descriptor in held:
            weights |= load_file(f"/proc/{pid}/fd/{descriptor}")
        self.call_each(Rank.let_go, [descriptor for _, descriptor in held])
        return weights

    def close(self) -> None:
        self._end()

    def _ask(self, messages: Sequence[Any]) -> list[Any]:
        """Send each rank its message and wait for all answers.

        Raises the first rank's error, or RankLost if a process is gone.
        """
        if not self._end.alive:
            raise RankLost("the ranks have been ended")
        for number, message in enumerate(messages):
            try:
                send(self._connections[number], message)
            except OSError:
                raise self._lost(number) from None
        answers: dict[int, Any] = {}
        while len(answers) < self.size:
            left = {self._connections[n]: n for n in range(self.size) if n not in answers}
            for connection in wait(list(left)):
                number = left[connection]  # pyright: ignore[reportArgumentType]
                try:
                    message = receive(self._connections[number])
                except (EOFError, OSError):
                    raise self._lost(number) from None
                match message:
                    case Progress():
                        pulse.advance()
                    case RankFailure(error, story):
                        self._check_alive()
                        self.close()
                        error.add_note(f"in rank {number + 1} of {self.size}:\n{story}")
                        raise error
                    case RankAnswer(value):
                        answers[number] = value
        return [answers[number] for number in range(self.size)]

    def _check_alive(self) -> None:
        """Raise RankLost if a process is gone: other ranks' errors are then only consequences."""
        end = time.monotonic() + DEATH_IS_SEEN_S
        while time.monotonic() < end:
            for number, process in enumerate(self._processes):
                if process.poll() is not None:
                    raise self._lost(number)
            time.sleep(0.05)

    def _lost(self, number: int) -> RankLost:
        process = self._processes[number]
        self.close()
        return RankLost(
            f"rank {number + 1} of {self.size} (process {process.pid}) ended with {process.returncode}"
        )


def _start() -> tuple[Connection, subprocess.Popen[bytes]]:
    """Start a process that waits for messages; returns this end of its connection, and itself."""
    ours, theirs = socket.socketpair()
    path = os.pathsep.join(filter(None, [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
    return Connection(ours.detach()), process


def _end(
    processes: list[subprocess.Popen[bytes]],
    connections: list[Connection],
    meeting: tempfile.TemporaryDirectory[str],
) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
    for connection in connections:
        connection.close()
    meeting.cleanup()
