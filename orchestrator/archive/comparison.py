"""Compares a training run with the packed one of the same id: same bytes, or the first difference.

Compared are the logs of training, the checkpoint of one step by the sha256 that both runs have
noted of its files, and its samples. Clocks and notes for people differ in every run. A version of
the program may note more of a row than an earlier one did: such rows are compared in the columns
that both have, and the others are named.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from orchestrator.records.rundir import DATA, METRICS, ROLLOUTS, RunReader


@dataclass
class RunComparison:
    """The first `difference` of two runs, for people, None without one; `columns` that only one of
    the two versions noted.
    """

    difference: str | None = None
    columns: set[str] = field(default_factory=set)

    def add_rows(self, where: str, before: bytes, now: bytes) -> None:
        """Compare two contents of one file of JSON Lines, row by row if they are not the same."""
        if before == now or self.difference is not None:
            return
        rows = itertools.zip_longest(before.splitlines(), now.splitlines())
        for number, (ours, theirs) in enumerate(rows, 1):
            if ours == theirs:
                continue
            first, second = _row(ours), _row(theirs)
            common = first.keys() & second.keys()
            if not common or any(first[key] != second[key] for key in common):
                self.difference = f"{where}, line {number}"
                return
            self.columns |= first.keys() ^ second.keys()


def compare_runs(
    packed: RunReader, again: RunReader, step: int, evaluation_ids: Iterable[str]
) -> RunComparison:
    """Both runs must be trained, and be of the same unit."""
    compared = RunComparison()
    for name in (DATA, METRICS, ROLLOUTS):
        compared.add_rows(f"{again.unit_id}/{name}", _content(packed, name), _content(again, name))
    same_weights = packed.checkpoint_files(step) == again.checkpoint_files(step)
    if compared.difference is None and not same_weights:
        compared.difference = f"{again.unit_id}: the files of the checkpoint of step {step}"
    for evaluation_id in evaluation_ids:
        before = dict(_slices(packed, evaluation_id, step))
        now = dict(_slices(again, evaluation_id, step))
        for name in sorted(before | now):
            where = f"{again.unit_id}/evals/{evaluation_id}/step_{step:06d}/{name}"
            compared.add_rows(where, before.get(name, b""), now.get(name, b""))
    return compared


def _row(line: bytes | None) -> dict[str, object]:
    """The object in a line; empty for a line that one of the files lacks, and for anything else."""
    try:
        row = json.loads(line or b"{}")
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _content(run: RunReader, name: str) -> bytes:
    path = run.path / name
    return path.read_bytes() if path.is_file() else b""


def _slices(run: RunReader, evaluation_id: str, step: int) -> Iterator[tuple[str, bytes]]:
    """Name and rows of each slice that counts, without the last line, which seals the others."""
    folder = run.evaluation_path(evaluation_id, step)
    for part in run.counted_slices(evaluation_id, step):
        data = (folder / part.name).read_bytes()
        yield part.name, data[: data.rfind(b"\n", 0, -1) + 1]
