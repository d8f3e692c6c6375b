"""A run directory at one moment: every question gets the same answer, and known files are not read."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.records.cache import Stamp, index_of, stamp_of
from orchestrator.records.files import list_folder
from orchestrator.records.rundir import METRICS, ROLLOUTS, RunReader, committed_bytes
from orchestrator.records.slice_files import SliceCounts
from orchestrator.records.slices import Slice, disjoint, parse

T = TypeVar("T")


class RunSnapshot(RunReader):
    """A reader for one look at a unit. It lists each folder once and reads each file at most once.

    What was computed from a file before is taken from the unit's index (`records.cache`) while the
    file's stamp is the same; `remember` keeps there what is new. Damage is found as by any reader,
    in files whose stamp changed.
    """

    def __init__(self, runs: Path, unit_id: str):
        super().__init__(runs, unit_id)
        self._index = index_of(runs, unit_id)
        self._known: dict[Hashable, Any] = {}

    def remember(self) -> None:
        """Keep what this look computed for the next one."""
        self._index.save(self.path)

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]

    def derived(self, file: str, name: str, compute: Callable[[], T]) -> T:
        try:
            stamp = stamp_of((self.path / file).stat())
        except OSError:  # no file, or none that can be read: there is nothing to recognise it by
            return compute()
        given = self._vouched(file)
        known = self._index.value(file, stamp, name, given)
        if known is not None:
            return known[0]
        value = compute()
        self._index.keep_value(file, stamp, name, given, value)
        return value

    def _vouched(self, file: str) -> Any:
        """The entry of `state.json` that a file's values rest on, too."""
        state = self._state()
        if file in (METRICS, ROLLOUTS):
            return [
                committed_bytes(state, file),
                state.get("log_sha256", {}).get(file),
                self.trained,
            ]
        return state.get("documents", {}).get(file)

    # --- evaluations ---

    def slices(self, evaluation_id: str, step: int) -> list[Slice]:
        return self.once(
            ("slices", evaluation_id, step), lambda: disjoint(self._listed(evaluation_id, step))
        )

    def slice_stamp(self, evaluation_id: str, step: int, part: Slice) -> tuple[int, ...]:
        return self._listed(evaluation_id, step)[part] or super().slice_stamp(
            evaluation_id, step, part
        )

    def slice_counts(self, evaluation_id: str, step: int, part: Slice) -> SliceCounts:
        stamp = self._listed(evaluation_id, step)[part]
        if stamp is None:
            return super().slice_counts(evaluation_id, step, part)
        file = f"evals/{evaluation_id}/step_{step:06d}/{part.name}"
        counts = self._index.slice(file, stamp)
        if counts is None:
            counts = super().slice_counts(evaluation_id, step, part)
            self._index.keep_slice(file, stamp, counts)
        return counts

    def _listed(self, evaluation_id: str, step: int) -> dict[Slice, Stamp | None]:
        """The slices in a folder with their stamps; None for a file that has none."""
        return self.once(
            ("listed", evaluation_id, step),
            lambda: self._list(self.evaluation_path(evaluation_id, step)),
        )

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
