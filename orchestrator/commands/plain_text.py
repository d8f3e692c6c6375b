"""Output on streams that lack some of our characters: `-` for −, `+/-` for ±, `e` for ε, at last
`?`.
"""

from __future__ import annotations

import codecs
import os
import unicodedata
from collections.abc import Mapping
from io import TextIOWrapper

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
    """Python's hook: what to write in place of the characters that cannot be, and where to go on."""
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
