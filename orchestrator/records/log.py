"""A unit's notes for people: `log.txt`, and its present work in `phase.json`.

No result depends on them, and recovery does not reproduce them. From `phase.json` the next attempt
within a sweep learns its number, and how many attempts before it ran out of memory. A note that
cannot be written, as on a full disk, is left out: the rows and checkpoints that matter fail on the
same disk, with a message.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from orchestrator.records.files import write_atomically

LOG, PHASE = "log.txt", "phase.json"


@dataclass(frozen=True)
class Phase:
    """The present work of the process that trains a unit.

    `name` is LOADING, READING, OPENING or TRAINING of `records.columns`; empty at the very start.
    `attempt` counts from 1 within one call of `trb submit`, which `sweep` names and which makes at
    most `attempts`; `out_of_memory` of them ran out of memory.
    """

    name: str = ""
    attempt: int = 1
    attempts: int = 1
    sweep: str = ""
    out_of_memory: int = 0


class RunLog:
    """Writes the notes of one unit; `folder` is its run directory."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._phase = Phase()

    @property
    def path(self) -> Path:
        """The file of the log."""
        return self._folder / LOG

    def begin(self, sweep: str, attempts: int) -> int:
        """Start an attempt of at most `attempts` within `sweep`; returns its number, from 1."""
        before = read_phase(self._folder)
        self._phase = Phase(attempt=1, attempts=attempts, sweep=sweep)
        if before is not None and before.sweep == sweep:
            attempt, out_of_memory = before.attempt + 1, before.out_of_memory
            self._phase = replace(self._phase, attempt=attempt, out_of_memory=out_of_memory)
        _write(self._folder, self._phase)
        return self._phase.attempt

    def line(self, text: str) -> None:
        """Add `text` to the log, after the clock time."""
        with contextlib.suppress(OSError), self.path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def enter(self, name: str) -> None:
        """Note the work that begins now; noting the same again writes nothing."""
        phase = replace(self._phase, name=name)
        if phase != self._phase:
            self._phase = phase
            _write(self._folder, phase)

    def note_out_of_memory(self) -> None:
        """Note that the attempt ran out of memory."""
        self._phase = replace(self._phase, out_of_memory=self._phase.out_of_memory + 1)
        _write(self._folder, self._phase)

    @property
    def out_of_memory(self) -> int:
        """How many attempts of the sweep ran out of memory."""
        return self._phase.out_of_memory


class LogHandler(logging.Handler):
    """Sends the warnings of Python's logging to a unit's log."""

    def __init__(self, log: RunLog):
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.line(f"{record.levelname.lower()}: {record.name}: {record.getMessage()}")


def read_log(folder: Path) -> str | None:
    """The log of the unit in `folder`; None if it has not started."""
    try:
        return (folder / LOG).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def read_phase(folder: Path) -> Phase | None:
    """Read the last note of the unit in `folder`; None without one that can be read."""
    try:
        raw: Any = json.loads((folder / PHASE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or set(raw) != {field.name for field in fields(Phase)}:
        return None
    kinds = {"name": str, "sweep": str}  # the others are numbers
    if not all(isinstance(value, kinds.get(name, int)) for name, value in raw.items()):
        return None
    return Phase(**raw)


def _write(folder: Path, phase: Phase) -> None:
    """Replace the note; a reader sees the old one or the new one."""
    with contextlib.suppress(OSError):
        write_atomically(folder / PHASE, json.dumps(asdict(phase)), durable=False)
