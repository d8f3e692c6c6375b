"""Keeps expensive results in the user's cache folder, under names that identify their inputs.

A name such as `majorities-3f9a0c….json` holds a hash or version of every input. Other inputs have
another name, and no file goes stale. Files of a removed folder are made again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.liveness.processes import take_lock
from orchestrator.records.files import write_atomically


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/trb`, by default `~/.cache/trb`."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "trb"


def is_cached(name: str) -> bool:
    """Whether `cached` would find `name`."""
    return (cache_folder() / name).is_file()


def cached(name: str, make: Callable[[], str]) -> str:
    """The text kept as `name`. If it is missing, one process makes it while the others wait.

    The file is written atomically. UserError if the cache folder cannot be written.
    """
    path = cache_folder() / name
    if not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = path.with_name(f".{name}.lock").open("a")
        except OSError as error:
            raise UserError(
                f"{path.parent}: {error.strerror}: expected a folder that can be written, "
                "as XDG_CACHE_HOME=FOLDER"
            ) from None
        with lock:
            take_lock(lock, wait=True)
            if not path.is_file():  # else another process has made it while this one waited
                write_atomically(path, make())
    return path.read_text(encoding="utf-8")
