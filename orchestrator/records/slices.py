"""Slices of an evaluation: the problems and samples of one checkpoint that share a file.

An evaluation of a checkpoint is a rectangle: its problems by the samples that each of them gets.
Evaluators sample it in independent parts, and write one file for each part, for example
`problems_0-250_of_500.samples_0-4.jsonl` in `evals/<evaluation id>/step_000020/`. A part is done
once its file exists. `selection.pending_slices` says which parts are wanted, and `liveness.claims`
keeps two evaluators from taking the same one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TEXTS = ".texts.gz"  # how the name of a file with texts of responses ends (`records.texts`)
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
