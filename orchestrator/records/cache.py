"""Caches values computed from a unit's files, so that only changed files are read again.

`runs/.index/<unit id>.json` holds each value beside the stamp of the file that it was computed
from, and it counts only while the file has that stamp. Nothing else rests on these files: a damaged
one is taken as empty, they can be removed at any time, and a read-only folder is looked at without
them.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.records.files import Damaged, sealed_lines, unsealed_lines, write_atomically
from orchestrator.records.slice_files import SliceCounts

# A change to an entry or a stamp needs another number, so that older files are not believed. A
# value whose meaning changes gets another name.
FORMAT = 2

FOLDER = ".index"  # of what can always be made again, in a runs folder
_STORED = "<u4"
_COUNTS = "counts"
Stamp = tuple[int, int, int, int]


def stamp_of(stat: os.stat_result) -> Stamp:
    """Numbers that change with every write of a file: size, times (ns) and inode."""
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


class UnitCache:
    """Known JSON values of the files of one unit, by the path in its directory and a name."""

    def __init__(self, runs: Path, unit_id: str):
        self._path = runs / FOLDER / f"{unit_id}.json"
        self._unit_id = unit_id
        self._changed = False
        # File → name → [stamp, what else was given, value].
        self._entries: dict[str, dict[str, list[Any]]] = {}
        # Thousands of slices hold the same problems, whose names are kept once.
        self._problems: list[tuple[str, ...]] = []
        with suppress(OSError, Damaged):
            data = unsealed_lines(self._path.read_bytes(), self._path, "remove it")
            raw = json.loads(data)  # as it was written: the seal says so
            if raw["format"] == FORMAT and raw["unit"] == unit_id:
                self._entries = raw["entries"]
                self._problems = [tuple(names) for names in raw["problems"]]
        self._number_of = {names: number for number, names in enumerate(self._problems)}

    def value(
        self, file: str, stamp: Stamp, name: str, given: Any, compute: Callable[[], Any]
    ) -> Any:
        """The value known while the file has this stamp and the same is `given`, else a new one.

        The stamp must have been taken before this call, which may read the file.
        """
        names = self._entries.setdefault(file, {})
        known = names.get(name)
        if known is not None and known[:2] == [list(stamp), given]:
            return known[2]
        value = compute()
        names[name] = [list(stamp), given, value]
        self._changed = True
        return value

    def counts(self, file: str, stamp: Stamp, compute: Callable[[], SliceCounts]) -> SliceCounts:
        """The counts of a slice, as `value` gives a value."""

        def packed() -> list[Any]:
            counts = compute()
            if counts.problems not in self._number_of:
                self._number_of[counts.problems] = len(self._problems)
                self._problems.append(counts.problems)
            # A paper sweep has millions of counts, and a list of numbers is slow to parse.
            text = base64.b64encode(counts.correct.astype(_STORED).tobytes()).decode()
            return [self._number_of[counts.problems], counts.tokens, text]

        number, tokens, text = self.value(file, stamp, _COUNTS, None, packed)
        correct = np.frombuffer(base64.b64decode(text), dtype=_STORED).astype(np.int64)
        return SliceCounts(self._problems[number], correct, tokens)

    def save(self, directory: Path) -> None:
        """Write what has changed, without the files that the unit's `directory` no longer has."""
        if not self._changed:
            return
        self._changed = False
        for file in list(self._entries):
            if not (directory / file).exists():
                del self._entries[file]
        raw = {
            "format": FORMAT,
            "unit": self._unit_id,
            "problems": self._problems,
            "entries": self._entries,
        }
        with suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
            text = json.dumps(raw, separators=(",", ":"), ensure_ascii=False)
            write_atomically(self._path, sealed_lines(f"{text}\n"), shared=True, durable=False)


# A process that looks again and again reads each file once.
_OPEN: dict[tuple[Path, str], UnitCache] = {}


def cache_of(runs: Path, unit_id: str) -> UnitCache:
    """The cache of a unit, as this process knows it."""
    if (runs, unit_id) not in _OPEN:
        _OPEN[runs, unit_id] = UnitCache(runs, unit_id)
    return _OPEN[runs, unit_id]


def forget() -> None:
    """Forget all that this process knows, as a new one."""
    _OPEN.clear()
