"""Standard output for a sweep: one that outlives its reader."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console


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
    from rich.console import Console

    def note() -> None:
        print(
            f"trb: the reader of the output is gone; the sweep goes on in {runs}", file=sys.stderr
        )

    return Console(file=LastingOutput(sys.stdout, note))  # pyright: ignore[reportArgumentType]
