"""Reads a run directory as of one moment, and takes values of unchanged files from the cache."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from orchestrator.records.files import (
    Damaged,
    list_folder,
    sealed_lines,
    unsealed_lines,
    write_atomically,
)
from orchestrator.records.rundir import METRICS, ROLLOUTS, RunReader, committed_bytes
from orchestrator.records.slices import Slice, SliceCounts, disjoint, parse

# --- caches values computed from a unit's files, so that only changed files are read again ---
#
# `runs/.index/<unit id>.json` holds each value beside the stamp of the file that it was computed
# from, and the value counts only while the file has that stamp. The folder is disposable: a damaged
# file counts as empty, any file may be removed at any time, and a read-only runs folder goes without.


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


# --- reads a run directory as of one moment, and takes values of unchanged files from the cache ---


T = TypeVar("T")


class RunSnapshot(RunReader):
    """Reads a unit as of one moment. It lists each folder once and reads each file at most once.

    While a file keeps its stamp, values come from the unit's cache (`records.snapshot`); `remember`
    adds new ones to it. In files with another stamp a snapshot finds damage as any reader does.
    """

    def __init__(self, runs: Path, unit_id: str):
        super().__init__(runs, unit_id)
        self._cache = cache_of(runs, unit_id)
        self._known: dict[Hashable, Any] = {}

    def remember(self) -> None:
        """Save the values that this snapshot computed for the next one."""
        self._cache.save(self.path)

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]

    def derived(self, file: str, name: str, compute: Callable[[], T]) -> T:
        try:
            stamp = stamp_of((self.path / file).stat())
        except OSError:  # no file, or one that cannot be read, has no stamp
            return compute()
        return self._cache.value(file, stamp, name, self._vouched(file), compute)

    def _vouched(self, file: str) -> Any:
        """The part of `state.json` on which the values of a file depend beside the file itself."""
        state = self._state()
        if file in (METRICS, ROLLOUTS):
            sha256 = state.get("log_sha256", {}).get(file)
            return [committed_bytes(state, file), sha256, self.trained]
        return state.get("documents", {}).get(file)

    # --- evaluations ---

    def slices(self, evaluation_id: str, step: int) -> list[Slice]:
        key = "slices", evaluation_id, step
        return self.once(key, lambda: disjoint(self._listed(evaluation_id, step)))

    def slice_stamp(self, evaluation_id: str, step: int, part: Slice) -> tuple[int, ...]:
        listed = self._listed(evaluation_id, step)[part]
        return listed or super().slice_stamp(evaluation_id, step, part)

    def slice_counts(self, evaluation_id: str, step: int, part: Slice) -> SliceCounts:
        stamp = self._listed(evaluation_id, step)[part]
        read = super().slice_counts
        if stamp is None:
            return read(evaluation_id, step, part)
        file = f"evals/{evaluation_id}/step_{step:06d}/{part.name}"
        return self._cache.counts(file, stamp, lambda: read(evaluation_id, step, part))

    def _listed(self, evaluation_id: str, step: int) -> dict[Slice, Stamp | None]:
        """The slices in a folder with their stamps; None for a file that has none."""
        folder = self.evaluation_path(evaluation_id, step)
        return self.once(("listed", evaluation_id, step), lambda: self._list(folder))

    def _list(self, folder: Path) -> dict[Slice, Stamp | None]:
        listed: dict[Slice, Stamp | None] = {}
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    part = parse(entry.name)
                    if part is not None:
                        listed[part] = _stamp_of_entry(entry)
        except OSError:
            assert not list_folder(folder, self.remedy)  # raises Damaged unless there is no folder
        return listed


def _stamp_of_entry(entry: os.DirEntry[str]) -> Stamp | None:
    try:
        return stamp_of(entry.stat())
    except OSError:
        return None
