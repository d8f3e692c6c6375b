"""Caches values computed from a unit's files, so that only changed files are read again.

`runs/.index/<unit id>.json` holds each value beside the stamp of the file that it was computed
from, and the value counts only while the file has that stamp. The folder is disposable: a damaged
file counts as empty, any file may be removed at any time, and a read-only runs folder goes without.
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

# Another form of entries or stamps needs another number, so that files with this one are ignored.
# A value with another meaning needs only another name.
FORMAT = 1

FOLDER = ".index"  # in a runs folder; everything in it can be made again
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
            raw = json.loads(data)  # valid JSON, since the seal was sound
            if raw["format"] == FORMAT and raw["unit"] == unit_id:
                self._entries = raw["entries"]
                self._problems = [tuple(names) for names in raw["problems"]]
        self._number_of = {names: number for number, names in enumerate(self._problems)}

    def value(
        self, file: str, stamp: Stamp, name: str, given: Any, compute: Callable[[], Any]
    ) -> Any:
        """The known value if the file's stamp and what is `given` are the same, else a new one.

        `given` is all that the value depends on beside the file. The caller takes the stamp before
        this call, which may read the file: a write in between then makes the value outdated.
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
        """Write the cache if it has changed, without files that the unit's `directory` lacks."""
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


# A process that looks at the units every few seconds reads each cache file only once.
_OPEN: dict[tuple[Path, str], UnitCache] = {}


def cache_of(runs: Path, unit_id: str) -> UnitCache:
    """The cache of a unit; each process reads its file once."""
    if (runs, unit_id) not in _OPEN:
        _OPEN[runs, unit_id] = UnitCache(runs, unit_id)
    return _OPEN[runs, unit_id]


def forget() -> None:
    """Make this process read all cache files again."""
    _OPEN.clear()
