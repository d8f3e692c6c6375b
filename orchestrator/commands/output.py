"""Standard output on any stream: one that lacks characters, and one whose reader is gone.

A stream that lacks a character gets `-` for −, `+/-` for ±, `e` for ε, at last `?`.
"""

from __future__ import annotations

import codecs
import os
import sys
import unicodedata
from collections.abc import Callable, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

SUBSTITUTES: Mapping[str, str] = {
    "−": "-", "–": "-", "—": "-", "─": "-", "━": "#", "│": "|", "█": "#", "░": "-",
    "…": "...", "·": "*", "•": "*", "×": "x", "±": "+/-", "÷": "/", "←": "<-", "→": "->", "≥": ">=", "≤": "<=",
    "≠": "!=", "≈": "~", "‖": "||", "“": '"', "”": '"', "’": "'", "‘": "'",
}  # fmt: skip
HANDLER = "trb_plain_text"  # its name among Python's handlers of encoding errors


def suit(stream: TextIOWrapper) -> None:
    """Let a stream take every text, also one whose encoding lacks a character of it.

    Under `LC_ALL=C` Python writes UTF-8 all the same. A terminal gets ASCII then; files and pipes
    keep their UTF-8.
    """
    codecs.register_error(HANDLER, _substitute)
    forced = os.environ.get("LC_ALL") in ("C", "POSIX") and stream.isatty()
    if forced and not (os.environ.get("PYTHONIOENCODING") or os.environ.get("PYTHONUTF8")):
        stream.reconfigure(encoding="ascii", errors=HANDLER)
    else:
        stream.reconfigure(errors=HANDLER)


def _substitute(error: UnicodeError) -> tuple[str | bytes, int]:
    """Give Python a text for the characters that a stream lacks, and the place after them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(plain, error.object[error.start : error.end])), error.end


def plain(character: str) -> str:
    """A character in ASCII: `e` for ε, `b` for β, `e` for é, `?` where nothing is near it.

    It is one character again wherever columns of a table may hold it, but for ±.
    """
    if character in SUBSTITUTES:
        return SUBSTITUTES[character]
    name = unicodedata.name(character, "")
    if name.startswith("GREEK SMALL LETTER"):
        return name.split()[3][0].lower()
    return "".join(filter(str.isascii, unicodedata.normalize("NFKD", character))) or "?"


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
