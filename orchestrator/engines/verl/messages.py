"""Messages between a rank's process and the process that started it.

They are plain pickles: `Connection.send` would share the memory of tensors through descriptors,
which both ends would have to keep alive.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any


@dataclass(frozen=True)
class Progress:
    """A sign of progress."""


@dataclass(frozen=True)
class RankAnswer:
    """The result of a call."""

    value: Any


@dataclass(frozen=True)
class RankFailure:
    """The error of a call, and its traceback."""

    error: Exception
    story: str


def send(connection: Connection, message: Any) -> None:
    """Send a message. Raises OSError if the other end is gone."""
    connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def receive(connection: Connection) -> Any:
    """Wait for a message. Raises EOFError or OSError if the other end is gone."""
    return pickle.loads(connection.recv_bytes())  # noqa: S301 - from a process of our own, over a socket without a name
