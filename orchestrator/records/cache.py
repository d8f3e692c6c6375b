"""Values computed from the files of a unit, so that the next look reads only files that have
changed.

`runs/.index/<unit id>.json` holds each value beside the stamp of the file that it was computed
from, and it counts only while the file has that stamp. Nothing else rests on these files: a damaged
one is taken as empty, they can be removed at any time, and a read-only folder is looked at without
them.
"""

from __future__ import annotations

import base64
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.records.files import Damaged, sealed_lines, unsealed_lines, write_atomically
from orchestrator.records.slice_files import SliceCounts

# What a slice's counts or a stamp are made of. A change to either needs another number, so that
# older files are not believed. Values under a name (`Index.value`) get another name where their
# meaning changes.
FORMAT = 1

FOLDER = ".index"  # of what can always be made again, in a runs folder
_STORED = "<u4"
Stamp = tuple[int, int, int, int]


def stamp_of(stat: os.stat_result) -> Stamp:
    """Numbers that change whenever a file is written or replaced: size, times of content and inode
    (ns), inode.
    """
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


@dataclass
class Index:
    """Known values of the files of one unit, by their path inside its directory."""

    path: Path
    slices: dict[str, tuple[Stamp, SliceCounts]] = field(default_factory=dict)
    values: dict[str, tuple[Stamp, dict[str, tuple[Any, Any]]]] = field(default_factory=dict)
    changed: bool = False

    def slice(self, file: str, stamp: Stamp) -> SliceCounts | None:
        """The counts of a slice as long as its file is the same; None where they are not known."""
        known = self.slices.get(file)
        return known[1] if known is not None and known[0] == stamp else None

    def keep_slice(self, file: str, stamp: Stamp, counts: SliceCounts) -> None:
        """Keep the counts of a slice whose file had this stamp before it was read."""
        self.slices[file] = stamp, counts
        self.changed = True

    def value(self, file: str, stamp: Stamp, name: str, given: Any) -> tuple[Any] | None:
        """A value under a name in a tuple, as long as its file and what else was `given` are the
        same; else None.
        """
        known = self.values.get(file)
        if known is None or known[0] != stamp or name not in known[1]:
            return None
        then, value = known[1][name]
        return (value,) if then == given else None

    def keep_value(self, file: str, stamp: Stamp, name: str, given: Any, value: Any) -> None:
        """Keep a JSON value that was computed from a file, which had this stamp before it was read."""
        known = self.values.get(file)
        names = known[1] if known is not None and known[0] == stamp else {}
        self.values[file] = stamp, names | {name: (given, value)}
        self.changed = True

    def save(self, directory: Path) -> None:
        """Write what has changed, without the files that the unit's `directory` no longer has."""
        if not self.changed:
            return
        self.changed = False
        self.slices = {
            file: known for file, known in self.slices.items() if (directory / file).exists()
        }
        problems = {counts.problems: None for _, counts in self.slices.values()}
        number = {names: index for index, names in enumerate(problems)}
        raw = {
            "format": FORMAT,
            "unit": directory.name,
            "problems": list(problems),
            "slices": {
                file: [stamp, number[counts.problems], counts.tokens, _to_text(counts.correct)]
                for file, (stamp, counts) in self.slices.items()
            },
            "values": self.values,
        }
        with suppress(OSError):
            self.path.parent.mkdir(exist_ok=True)
            text = json.dumps(raw, separators=(",", ":"), ensure_ascii=False)
            write_atomically(self.path, sealed_lines(f"{text}\n"), shared=True, durable=False)


# A process that looks again and again reads each index once.
_OPEN: dict[Path, Index] = {}


def index_of(runs: Path, unit_id: str) -> Index:
    """The index of a unit, as this process knows it."""
    path = runs / FOLDER / f"{unit_id}.json"
    if path not in _OPEN:
        _OPEN[path] = _read(path, unit_id)
    return _OPEN[path]


def forget() -> None:
    """Forget all that this process knows, as a new one."""
    _OPEN.clear()


def _read(path: Path, unit_id: str) -> Index:
    """Read an index file; empty where the file is damaged or not of this version."""
    index = Index(path)
    try:
        raw = json.loads(unsealed_lines(path.read_bytes(), path, "remove it"))
        if (raw["format"], raw["unit"]) != (FORMAT, unit_id):
            return index
        problems = [tuple(names) for names in raw["problems"]]
        for file, (stamp, number, tokens, correct) in raw["slices"].items():
            index.slices[file] = (
                tuple(stamp),
                SliceCounts(problems[number], _from_text(correct), tokens),
            )
        for file, (stamp, names) in raw["values"].items():
            index.values[file] = (
                tuple(stamp),
                {name: (given, value) for name, (given, value) in names.items()},
            )
    except (OSError, Damaged, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Index(path)
    return index


def _to_text(counts: NDArray[np.int64]) -> str:
    """Whole numbers as base64: a paper sweep has millions, and a list of numbers is slow to parse."""
    return base64.b64encode(counts.astype(_STORED).tobytes()).decode()


def _from_text(text: str) -> NDArray[np.int64]:
    return np.frombuffer(base64.b64decode(text), dtype=_STORED).astype(np.int64)
