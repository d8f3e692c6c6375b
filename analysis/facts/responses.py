"""Counts the responses of the selected checkpoints in other ways, which pass@1 hides.

Each number is a sum over problems divided by a count. A share of samples is a mean over problems. A
mean length is all tokens of right (or wrong) responses divided by the number of such responses. The
intervals are those of pass@1: over seeds with several training runs, else a bootstrap over
problems.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf

import numpy as np

from analysis.facts.assess import estimate
from analysis.facts.candidates import Candidate, Selected
from analysis.facts.evidence import Estimate, Facts
from analysis.facts.intervals import Array, Draws, average
from analysis.labels import AVERAGE
from orchestrator.records.slices import ProblemRecord
from orchestrator.selection import significance
from orchestrator.selection.scores import majority_share, pass_share, votes_of
from orchestrator.selection.study import Study

PERCENT = 100
Amount = tuple[Fraction | int, int]  # of one problem: a sum, and the count that divides it


def _majority(record: ProblemRecord, k: int) -> Amount | None:
    votes = votes_of(record)
    return None if votes is None else (majority_share(votes, k), 1)


def _tokens_right(record: ProblemRecord, _: int) -> Amount | None:
    return None if record.tokens_right is None else (record.tokens_right, record.correct)


def _tokens_wrong(record: ProblemRecord, _: int) -> Amount | None:
    if record.tokens_right is None:
        return None
    return record.tokens - record.tokens_right, record.n - record.correct


# Name → the amount of a problem; None where its record, of an older version, lacks it.
AMOUNTS: Mapping[str, Callable[[ProblemRecord, int], Amount | None]] = {
    "pass_at_k": lambda record, k: (pass_share(record.n, record.correct, k), 1),
    "maj_at_k": _majority,
    "truncated": lambda record, _: (Fraction(record.truncated, record.n), 1),
    "no_answer": lambda record, _: (Fraction(record.no_answer, record.n), 1),
    "tokens_right": _tokens_right,
    "tokens_wrong": _tokens_wrong,
}
SHARES = ("pass_at_k", "maj_at_k", "truncated", "no_answer")  # shown in percent; the others: tokens
OF_SEVERAL = ("pass_at_k", "maj_at_k")  # which would repeat pass@1 where problems have one sample


@dataclass(frozen=True)
class Counted:
    """A number of one checkpoint in one column, of each seed, and its replicates (B,)."""

    by_seed: Sequence[Fraction]
    replicates: Array


Numbers = dict[str, dict[str, Counted]]  # of one checkpoint: column → name → number


def with_responses(study: Study, evidence: Facts, chosen: Sequence[Selected]) -> Facts:
    """The evidence with the numbers of each row's responses.

    It reads whole records, which takes ten times as long as the counts that pass@1 needs.
    """
    rows = []
    for setup in dict.fromkeys(row.setup for row in evidence.rows):
        best = {each.best.method: each.best for each in chosen if each.setup == setup}
        k = _common_samples(best.values())
        numbers = _count_setup(study, setup, best, k)
        for row in evidence.rows:
            if row.setup == setup:
                columns = {}
                for key, column in row.columns.items():
                    estimated = _estimate_column(numbers, row.method, key)
                    columns[key] = replace(column, responses=estimated)
                rows.append(replace(row, columns=columns, k=k))
    return replace(evidence, rows=tuple(rows))


def _common_samples(checkpoints: Iterable[Candidate]) -> int:
    """The samples that every problem of every benchmark has."""
    samples = []
    for checkpoint in checkpoints:
        for seeds in checkpoint.counts.values():
            samples += [seed.samples for seed in seeds]
    return min(samples)


def _count_setup(
    study: Study, setup: str, best: Mapping[str, Candidate], k: int
) -> dict[str, Numbers]:
    """Method → its numbers on each benchmark, and their means under `avg` where none is missing."""
    numbers: dict[str, Numbers] = {method: {} for method in best}
    ids = study.evaluation_ids(setup)
    benchmarks = list(next(iter(best.values())).counts)
    for key in benchmarks:
        draws: Draws | None = None
        for method, checkpoint in best.items():
            by_seed = []
            for unit in checkpoint.units:
                by_seed.append(study.reader(unit).evaluation(ids[key], checkpoint.step) or [])
            draws = draws or Draws(key, len(by_seed[0]))
            numbers[method][key] = _count(by_seed, k, draws, method)
    for of_method in numbers.values():
        means = {}
        for name in AMOUNTS:
            known = [of_method[key][name] for key in benchmarks if name in of_method[key]]
            if len(known) == len(benchmarks):
                of_seeds = zip(*(each.by_seed for each in known), strict=True)
                replicates = average([each.replicates for each in known])
                means[name] = Counted([statistics.mean(seed) for seed in of_seeds], replicates)
        of_method[AVERAGE] = means
    return numbers


def _count(
    by_seed: Sequence[Sequence[ProblemRecord]], k: int, draws: Draws, method: str
) -> dict[str, Counted]:
    """Name → number of a checkpoint on one benchmark, without those that a seed lacks."""
    found = {}
    for name, amount_of in AMOUNTS.items():
        if k == 1 and name in OF_SEVERAL:
            continue
        values, sums, counts = [], [], []
        for records in by_seed:
            of_problems: list[Fraction | int] = []
            divisors: list[int] = []
            for record in records:
                amount = amount_of(record, k)
                if amount is not None:
                    of_problems.append(amount[0])
                    divisors.append(amount[1])
            total = sum(divisors)
            if len(divisors) == len(records) and total:
                values.append(Fraction(sum(of_problems)) / total)
                sums.append(list(map(float, of_problems)))
                counts.append(divisors)
        if len(values) < len(by_seed):
            continue
        if name in SHARES:
            replicates = PERCENT * draws.mean(np.mean(sums, axis=0), f"{method} {name}")
            found[name] = Counted([PERCENT * value for value in values], replicates)
        else:
            found[name] = Counted(values, draws.ratio(np.array(sums), np.array(counts)))
    return found


def _estimate_column(
    numbers: Mapping[str, Numbers], method: str, column: str
) -> dict[str, Estimate]:
    """Name → number of a method in a column, with its interval."""
    found = {}
    for name, counted in numbers[method][column].items():
        # A draw of problems without any right (or wrong) response has no mean length.
        replicates = counted.replicates[np.isfinite(counted.replicates)]
        found[name] = estimate(
            statistics.mean(counted.by_seed),
            significance.of_mean(significance.spread_of(counted.by_seed)),
            replicates,
            highest=PERCENT if name in SHARES else inf,
        )
    return found
