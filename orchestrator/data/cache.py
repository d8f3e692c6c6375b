"""What is dear to compute, kept in the user's cache folder under a name that says what it was computed from."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from orchestrator.errors import UserError


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/trb`, by default `~/.cache/trb`."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "trb"


def is_cached(name: str) -> bool:
    """Whether `cached` would find `name`."""
    return (cache_folder() / name).is_file()


def cached(name: str, make: Callable[[], str]) -> str:
    """The text kept as `name`; made first if it is not there, by one process while the others wait.

    It appears whole or not at all. UserError if the cache folder cannot be written.
    """
    path = cache_folder() / name
    if not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = path.with_name(f".{name}.lock").open("a")
        except OSError as error:
            raise UserError(
                f"{path.parent}: {error.strerror} — a folder that can be written, as XDG_CACHE_HOME=FOLDER"
            ) from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.is_file():
                _replace(path, make())
    return path.read_text(encoding="utf-8")


def _replace(path: Path, text: str) -> None:
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)
