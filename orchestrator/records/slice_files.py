"""Reads the file of one slice: its whole records, or only their counts.

A file has a row for each problem of its slice (`problem_record`), and a last line that names the
slice (`identity`) and has the sha256 of the rows. The file's name says which problems and samples
it holds (`slices`). `writer.write_slice` writes it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.records.files import damaged, parse_rows, read_bytes, unsealed_lines
from orchestrator.records.problem_record import ProblemRecord
from orchestrator.records.slices import Slice

REMEDY = "remove it; trb submit takes these samples again"
# How a line of `ProblemRecord.to_row` begins. Tables over many runs read nothing but these four
# fields of hundreds of thousands of lines, and a regular expression finds them ten times as fast as
# a JSON parser: most of a line is answers. It matches complete lines alone, so fewer matches than
# lines mean that some line has another layout (other keys first, or an id with an escaped
# character); `read_counts` then parses the file.
_COUNTS = re.compile(
    rb'^\{"problem": "([^"\\]*)", "n": ([0-9]+), "correct": ([0-9]+), "truncated": [0-9]+, "no_answer": [0-9]+, '
    rb'"timed_out": [0-9]+, "tokens": ([0-9]+), .*\n',
    re.MULTILINE,
)


@dataclass(frozen=True, eq=False)
class SliceCounts:
    """Counts of one slice: `correct` samples of each of its `problems`, and tokens of them all."""

    problems: tuple[str, ...]
    correct: NDArray[np.int64]
    tokens: int


def identity(folder: Path, part: Slice) -> dict[str, Any]:
    """The values in the last line of a slice's file that tell which slice it is.

    `folder` is `<unit>/evals/<evaluation id>/step_000020`. These values reveal a file that was
    copied by mistake into the folder of another checkpoint, evaluation or unit.
    """
    return {
        "unit": folder.parts[-4],
        "evaluation": folder.parts[-2],
        "step": int(folder.parts[-1].removeprefix("step_")),
        "problems": f"{part.problem}-{part.problem_end} of {part.problems}",
        "samples": f"{part.sample}-{part.sample_end}",
    }


def read_records(folder: Path, part: Slice) -> list[ProblemRecord]:
    """The records of a slice in the folder of its evaluation, a row per problem.

    Raises Damaged where the file is gone, is not what was written, or holds another slice than its
    name and its folder say.
    """
    path = folder / part.name
    records = list(map(ProblemRecord.from_row, parse_rows(_lines(folder, part), path, REMEDY)))
    _check_extent(path, part, [record.n for record in records])
    return records


def read_counts(folder: Path, part: Slice) -> SliceCounts:
    """Sums over a slice's records, ten times as fast as `read_records`, for tables of many runs."""
    path = folder / part.name
    lines = _lines(folder, part)
    matches = _COUNTS.findall(lines)
    if len(matches) != lines.count(b"\n") or not matches:
        names, counts, total = [], [], 0
        for record in read_records(folder, part):
            names.append(record.problem)
            counts.append(record.correct)
            total += record.tokens
        return SliceCounts(tuple(names), np.array(counts, dtype=np.int64), total)
    problems, n, correct, tokens = zip(*matches, strict=True)
    _check_extent(path, part, list(map(int, n)))
    counts = np.fromiter(map(int, correct), dtype=np.int64, count=len(correct))
    return SliceCounts(_names(b"\n".join(problems)), counts, sum(map(int, tokens)))


def stamp_of_slice(folder: Path, part: Slice) -> tuple[int, ...]:
    """Numbers that change when the slice is written again. Raises Damaged where its file is gone."""
    try:
        # A text, since a `Path` takes longer to make: a race asks for hundreds of stamps at a time.
        stat = os.stat(f"{folder}/{part.name}")
    except OSError as error:
        raise damaged(
            folder / part.name, f"cannot be read ({error.strerror or error})", REMEDY
        ) from None
    return stat.st_ino, stat.st_mtime_ns


def _lines(folder: Path, part: Slice) -> bytes:
    """The rows of a slice's file, once their seal is verified."""
    path = folder / part.name
    data = read_bytes(path, REMEDY)
    if data is None:
        raise damaged(path, "is gone", "run the same command again")
    return unsealed_lines(data, path, REMEDY, identity(folder, part))


def _check_extent(path: Path, part: Slice, samples: list[int]) -> None:
    """Raise Damaged unless a slice has as many samples of as many problems as its name says."""
    if samples != [part.samples] * part.width:
        raise damaged(path, "does not hold what its name says", REMEDY)


@cache
def _names(lines: bytes) -> tuple[str, ...]:
    """The names in some lines, one tuple for the thousands of slices that hold the same problems."""
    return tuple(lines.decode().split("\n"))
