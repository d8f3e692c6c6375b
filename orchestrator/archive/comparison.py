"""Compares a training run with the packed one of the same id: same bytes, or the first difference.

Compared are the logs of training, the checkpoint of one step by the sha256 that both runs have
noted of its files, and its samples. Clocks and notes for people differ in every run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from orchestrator.records.rundir import DATA, METRICS, ROLLOUTS, RunReader


def first_difference(
    packed: RunReader, again: RunReader, step: int, evaluation_ids: Iterable[str]
) -> str | None:
    """The first difference, for people; None where all is the same. Both runs must be trained."""
    for name in (DATA, METRICS, ROLLOUTS):
        before, now = _content(packed, name), _content(again, name)
        if before != now:
            line = _first_line(before or b"", now or b"")
            return f"{again.unit_id}/{name}, line {line}"
    if packed.checkpoint_files(step) != again.checkpoint_files(step):
        return f"{again.unit_id}: the files of the checkpoint of step {step}"
    for evaluation_id in evaluation_ids:
        before, now = (
            dict(_slices(packed, evaluation_id, step)),
            dict(_slices(again, evaluation_id, step)),
        )
        if before != now:
            name = min(key for key in before | now if before.get(key) != now.get(key))
            return f"{again.unit_id}: {evaluation_id}, step {step}, {name}"
    return None


def _content(run: RunReader, name: str) -> bytes | None:
    path = run.path / name
    return path.read_bytes() if path.is_file() else None


def _first_line(before: bytes, now: bytes) -> int:
    """The number of the first line that differs, or that one of the two lacks."""
    lines = itertools.zip_longest(before.splitlines(), now.splitlines())
    return next(number for number, (ours, theirs) in enumerate(lines, 1) if ours != theirs)


def _slices(run: RunReader, evaluation_id: str, step: int) -> Iterator[tuple[str, bytes]]:
    """Name and content of each slice that counts."""
    folder = run.evaluation_path(evaluation_id, step)
    for part in run.counted_slices(evaluation_id, step):
        yield part.name, (folder / part.name).read_bytes()
