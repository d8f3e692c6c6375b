"""What a rank in a process of its own says to the one that started it, and how.

Plain pickles: `Connection.send` would share the memory of tensors through descriptors that both ends must keep alive.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any


@dataclass(frozen=True)
class Progress:
    """Some work got on."""


@dataclass(frozen=True)
class Answer:
    """What a call returned."""

    value: Any


@dataclass(frozen=True)
class Failure:
    """What a call raised, and its traceback."""

    error: Exception
    story: str


def send(connection: Connection, message: Any) -> None:
    """Raises OSError where the other end is gone."""
    connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def receive(connection: Connection) -> Any:
    """Waits for a message. Raises EOFError or OSError where the other end is gone."""
    return pickle.loads(connection.recv_bytes())  # noqa: S301 - from a process of our own, over a socket without a name
