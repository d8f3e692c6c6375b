"""Reads a run directory as of one moment, and takes values of unchanged files from the cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.records.cache import Stamp, cache_of, stamp_of
from orchestrator.records.files import list_folder
from orchestrator.records.rundir import METRICS, ROLLOUTS, RunReader, committed_bytes
from orchestrator.records.slice_files import SliceCounts
from orchestrator.records.slices import Slice, disjoint, parse

T = TypeVar("T")


class RunSnapshot(RunReader):
    """Reads a unit as of one moment. It lists each folder once and reads each file at most once.

    While a file keeps its stamp, values come from the unit's cache (`records.cache`); `remember`
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
