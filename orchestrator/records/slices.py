"""Slices of an evaluation: the problems and samples of one checkpoint that share a file.

An evaluation of a checkpoint is a rectangle: its problems by the samples that each of them gets.
Evaluators sample it in independent parts, and write one file for each part, for example
`problems_0-250_of_500.samples_0-4.jsonl` in `evals/<evaluation id>/step_000020/`. A part is done
once its file exists. `selection.pending_slices` says which parts are wanted, and `liveness.leases`
keeps two evaluators from taking the same one. If two do, the file that is there first counts
(`records.writer`).
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.records.files import (
    compressed,
    damaged,
    decompressed,
    parse_rows,
    read_bytes,
    sealed_lines,
    unsealed_lines,
    write_atomically,
)

TEXTS = ".texts.gz"  # how the name of a file with texts of responses ends
_NAME = re.compile(r"problems_([0-9]+)-([0-9]+)_of_([0-9]+)\.samples_([0-9]+)-([0-9]+)\.jsonl")


@dataclass(frozen=True)
class Slice:
    """Samples [`sample`, `sample_end`) of problems [`problem`, `problem_end`) of all `problems`."""

    sample: int
    sample_end: int
    problem: int
    problem_end: int
    problems: int

    @property
    def name(self) -> str:
        """Name of the file: `problems_0-250_of_500.samples_0-4.jsonl`."""
        of = f"problems_{self.problem}-{self.problem_end}_of_{self.problems}"
        return f"{of}.samples_{self.sample}-{self.sample_end}.jsonl"

    @property
    def texts_name(self) -> str:
        """Name of the file beside it with texts of its responses."""
        return f"{self.name.removesuffix('.jsonl')}{TEXTS}"

    @property
    def width(self) -> int:
        """How many problems it covers."""
        return self.problem_end - self.problem

    @property
    def samples(self) -> int:
        """How many samples of each of them."""
        return self.sample_end - self.sample

    @property
    def responses(self) -> int:
        """How many responses it counts."""
        return self.width * self.samples

    def overlaps(self, other: Slice) -> bool:
        """Whether a sample of a problem is in both."""
        samples = self.sample < other.sample_end and other.sample < self.sample_end
        return samples and self.problem < other.problem_end and other.problem < self.problem_end


def parse(name: str) -> Slice | None:
    """The slice that a file is named after; None for any other name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    problem, problem_end, problems, sample, sample_end = map(int, match.groups())
    if not (problem < problem_end <= problems and sample < sample_end):
        return None
    return Slice(sample, sample_end, problem, problem_end, problems)


def disjoint(slices: Iterable[Slice]) -> list[Slice]:
    """The slices that count, those of the first samples first.

    Two sweeps that cut one evaluation differently may leave slices that overlap. Of these the one
    with the first samples counts; of several that begin with the same, the largest. So no sample
    counts twice, and every reader comes to the same numbers.
    """
    counted: list[Slice] = []
    for each in sorted(slices, key=lambda s: (s.sample, s.problem, -s.sample_end, -s.problem_end)):
        if not any(each.overlaps(other) for other in counted):
            counted.append(each)
    return counted


def complete_samples(slices: Sequence[Slice]) -> list[int]:
    """The numbers m, ascending, up to which disjoint slices hold all samples, [0, m), of every problem.

    No slice crosses such an m. Races were decided at these; an evaluation counts up to the last.
    """
    complete: list[int] = []
    for start, end in itertools.pairwise(sorted(_edges(slices) | {0})):
        covered = problems = 0
        crossed = False
        for each in slices:
            if each.sample <= start and end <= each.sample_end:
                covered += each.width
                problems = each.problems
            crossed = crossed or each.sample < end < each.sample_end
        if not problems or covered < problems:
            break
        if not crossed:
            complete.append(end)
    return complete


def _edges(slices: Iterable[Slice]) -> set[int]:
    """The numbers of samples at which slices begin or end."""
    edges = set()
    for each in slices:
        edges |= {each.sample, each.sample_end}
    return edges


def missing(
    there: Sequence[Slice], problems: int, samples: int, cuts: Iterable[int], most: int
) -> list[Slice]:
    """The slices that disjoint ones, `there`, leave out of samples [0, `samples`) of all problems.

    Parts end at the `cuts`, the numbers of samples at which a race is decided. A part holds at most
    `most` responses, but all of at least one problem. The places of the cuts do not depend on the
    slices that exist, so that any order of work makes the same files.
    """
    edges = [0]
    for edge in sorted({*cuts, *_edges(there)}):
        if 0 < edge < samples:
            edges.append(edge)
    edges.append(samples)
    lacking: list[Slice] = []
    for start, end in itertools.pairwise(edges):
        parts = -(-problems // max(1, most // (end - start)))
        width = -(-problems // parts)
        covered = []
        for each in there:
            if each.sample <= start and end <= each.sample_end:
                covered.append((each.problem, each.problem_end))
        # Fill the gap before each covered range of problems, and the one after the last, with parts
        # that end at multiples of `width`.
        position = 0
        for problem, problem_end in [*sorted(covered), (problems, problems)]:
            while position < problem:
                until = min(problem, position - position % width + width)
                lacking.append(Slice(start, end, position, until, problems))
                position = until
            position = max(position, problem_end)
    return lacking


# --- the record of one problem at one checkpoint: counts, never means ---


COUNTS = ("n", "correct", "truncated", "no_answer", "timed_out", "tokens")
LATER_FIELDS = ("right_answers", "tokens_right")  # that records of older versions lack


@dataclass(frozen=True)
class ProblemRecord:
    """Counts over n generations; `answers` keeps every extracted answer for a corrected grader.

    `lengths` counts responses by length in tokens, in bins that grow by 2^(1/8): {lower edge:
    responses}. It is empty where lengths were not kept, as in records of older versions.
    `right_answers` are those of `answers` that the grader graded as right, with their counts.
    `tokens_right` counts the tokens of the right responses. Both are None where they were not kept.
    """

    problem: str
    n: int
    correct: int
    truncated: int
    no_answer: int
    timed_out: int
    tokens: int
    answers: dict[str, int]
    lengths: dict[int, int] = field(default_factory=dict)
    right_answers: dict[str, int] | None = None
    tokens_right: int | None = None

    def to_row(self) -> dict[str, Any]:
        row = asdict(self)
        row["lengths"] = {str(edge): count for edge, count in sorted(self.lengths.items())}
        # A record of an older version is written again without the fields that it lacks.
        for name in LATER_FIELDS:
            if row[name] is None:
                del row[name]
        return row

    @staticmethod
    def from_row(row: dict[str, Any]) -> ProblemRecord:
        lengths = {int(edge): count for edge, count in row.get("lengths", {}).items()}
        return ProblemRecord(**{**row, "lengths": lengths})


def merge(parts: Sequence[ProblemRecord]) -> ProblemRecord:
    """Counts of disjoint sets of samples of one problem.

    A field that one part lacks is missing from the whole, since a sum over the others misleads.
    """
    if len(parts) == 1:
        return parts[0]
    assert len({part.problem for part in parts}) == 1
    answers: Counter[str] = Counter()
    right_answers: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    tokens_right = 0
    for part in parts:
        answers.update(part.answers)
        right_answers.update(part.right_answers or {})
        counts.update({name: getattr(part, name) for name in COUNTS})
        tokens_right += part.tokens_right or 0
    lacks_right = any(part.right_answers is None for part in parts)
    lacks_tokens = any(part.tokens_right is None for part in parts)
    return ProblemRecord(
        problem=parts[0].problem,
        answers=dict(sorted(answers.items())),
        lengths=_merge_lengths(parts),
        right_answers=None if lacks_right else dict(sorted(right_answers.items())),
        tokens_right=None if lacks_tokens else tokens_right,
        **counts,
    )


def length_histogram(lengths: Iterable[int]) -> dict[int, int]:
    """{lower edge: how many} of response lengths in tokens, by edge. Lengths up to 16 are exact."""
    return dict(sorted(Counter(_lower_edge(length) for length in lengths).items()))


def _merge_lengths(parts: Sequence[ProblemRecord]) -> dict[int, int]:
    """The histogram of all parts; empty if one part lacks its own."""
    total: Counter[int] = Counter()
    for part in parts:
        if sum(part.lengths.values()) != part.n:
            return {}
        total.update(part.lengths)
    return dict(sorted(total.items()))


def _lower_edge(length: int) -> int:
    """The least whole length in the bin of `length`; bins start at 2^(j/8), exact: 2^j ≤ length^8."""
    if length < 1:
        return 0
    j = (length**8).bit_length() - 1
    # ⌈2^(j/8)⌉ in whole numbers: the eighth root is a square root three times over.
    return math.isqrt(math.isqrt(math.isqrt(2**j - 1))) + 1


# --- reads the file of one slice: its whole records, or only their counts ---
#
# A file has a row for each problem of its slice (`ProblemRecord`), and a last line that names the
# slice (`identity`) and has the sha256 of the rows. The file's name says which problems and samples
# it holds (`Slice.name`). `writer.write_slice` writes it.


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


# --- texts of an evaluation's responses, in a file beside the file of their slice ---
#
# `problems_0-250_of_500.samples_0-4.texts.gz` has a row for each kept response, ordered by problem
# and sample. As in the file of the slice, its last line names the slice and has the sha256 of the
# rows. `writer.write_slice` writes the texts before the slice, so no slice lacks the texts that were
# to be kept. A slice without such a file kept none.


TEXT_REMEDY = "remove it; only texts are lost, the counts of its slice stay"


@dataclass(frozen=True)
class ResponseText:
    """One response with its grade.

    `prompt` is the text that the model read, with its template. `sample` is the number of the
    response among those to its problem. `answer` is None for a response without a box. `tokens`
    includes the end token of the response, as lengths do everywhere.
    """

    problem: str
    sample: int
    prompt: str
    gold: str | None
    text: str
    answer: str | None
    right: bool
    truncated: bool
    timed_out: bool
    tokens: int

    @property
    def failure(self) -> str | None:
        """The first of FAILURES that fits; None for a right answer that was not cut off."""
        return next((name for name, fits in FAILURES.items() if fits(self)), None)


# A cause comes before its effect: most truncated responses have no answer.
FAILURES: dict[str, Callable[[ResponseText], bool]] = {
    "timed out": lambda text: text.timed_out,
    "truncated": lambda text: text.truncated,
    "no answer": lambda text: text.answer is None,
    "wrong": lambda text: not text.right,
}


def write_texts(folder: Path, part: Slice, texts: Sequence[ResponseText]) -> None:
    """Write the texts of a slice, ordered by problem and sample.

    They replace the texts that a killed evaluator left there, which may be of other responses.
    """
    path = folder / part.texts_name
    if not texts:
        path.unlink(missing_ok=True)
        return
    lines = "".join(json.dumps(vars(text), ensure_ascii=False) + "\n" for text in texts)
    content = sealed_lines(lines, identity(folder, part))
    write_atomically(path, compressed(content), shared=True)


def read_texts(folder: Path, part: Slice) -> list[ResponseText]:
    """The kept texts of a slice, ordered by problem and sample; empty without a file.

    Raises Damaged if the file is not what was written, or holds texts of another slice than its
    name and its folder say.
    """
    path = folder / part.texts_name
    data = read_bytes(path, TEXT_REMEDY)
    if data is None:
        return []
    content = decompressed(data, path, TEXT_REMEDY)
    lines = unsealed_lines(content, path, TEXT_REMEDY, identity(folder, part))
    texts = [ResponseText(**row) for row in parse_rows(lines, path, TEXT_REMEDY)]
    # Every problem has the same number of texts, those of the slice's first samples. So a reader
    # finds the problem of a text by its position.
    kept, rest = divmod(len(texts), part.width)
    sound = rest == 0 and kept <= part.samples
    for position, text in enumerate(texts):
        number = position % max(1, kept)
        sound = sound and text.sample == part.sample + number
        sound = sound and text.problem == texts[position - number].problem
    if not sound:
        raise damaged(path, "does not hold what its name says", TEXT_REMEDY)
    return texts
