"""Selected checkpoints → intervals, differences to vanilla, and the bias of selecting.

With two or more training runs an interval is over seeds, with one it is over problems and says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf

import numpy as np

from analysis.facts import uncertainty
from analysis.facts.candidates import Candidate, Scored, Selected, read_counts
from analysis.facts.counts import score_matrices
from analysis.facts.evidence import (
    BenchmarkSource,
    ColumnEvidence,
    Difference,
    Estimate,
    Facts,
    RowEvidence,
)
from analysis.facts.split_half import split_half_scores
from analysis.facts.uncertainty import Array, Interval
from analysis.labels import AVERAGE, BASE
from orchestrator.data.benchmarks import benchmark_of
from orchestrator.experiment.methods import REFERENCE
from orchestrator.selection import significance
from orchestrator.selection.scores import PASS_AT_1
from orchestrator.selection.significance import SeedSpread
from orchestrator.selection.study import Study

PERCENT = 100
LEVEL = 1 - uncertainty.CONFIDENCE

Columns = dict[str, Array]  # benchmark or `avg` → replicates (B,) in percent
Spreads = Mapping[str, SeedSpread | None]  # benchmark or `avg` → spread between seeds in percent


def assess(known: Facts, chosen: Sequence[Selected]) -> Facts:
    """The facts with the rows of all that was chosen; UserError if a setup's problems differ."""
    study = known.study
    rows: list[RowEvidence] = []
    spreads: dict[tuple[str, str], SeedSpread | None] = {}
    for name in study.experiment.setups:
        of_setup = [selected for selected in chosen if selected.setup == name]
        rows += _assess_setup(study, name, of_setup)
        for key, spread in seed_spreads(selected.best for selected in of_setup).items():
            spreads[name, key] = spread
    sources = []
    for name, setup in study.experiment.setups.items():
        ids = study.evaluation_ids(name)
        for key, run in setup.evaluation.benchmarks.items():
            identity = benchmark_of(key, run).identity(run)
            sources.append(BenchmarkSource(name, key, ids[key], identity))
    return replace(known, rows=tuple(rows), benchmarks=tuple(sources), spreads=spreads)


def replicate_scores(checkpoints: Mapping[str, Candidate]) -> dict[str, Columns]:
    """Name → column → bootstrap replicates of a setup's checkpoints; the average first.

    UserError where they rest on different problems.
    """
    columns: dict[str, Columns] = {name: {} for name in checkpoints}
    for key in next(iter(checkpoints.values())).counts if checkpoints else ():
        # All checkpoints of a setup are resampled together: on the same draws of problems, what two
        # of them share cancels in their difference. Seeds are averaged first, so that a draw takes
        # a problem with all of its seeds.
        scores = uncertainty.resample(score_matrices(checkpoints, key), key)
        for name, replicates in scores.items():
            columns[name][key] = PERCENT * replicates
    for name, of_benchmarks in columns.items():
        mean = uncertainty.average(list(of_benchmarks.values()))
        columns[name] = {AVERAGE: mean, **of_benchmarks}
    return columns


def exact_scores(checkpoint: Scored) -> dict[str, Fraction]:
    """Column → exact score in percent; the average first."""
    return {key: PERCENT * statistics.mean(scores) for key, scores in checkpoint.by_seed.items()}


def seed_spreads(checkpoints: Iterable[Scored]) -> dict[str, SeedSpread | None]:
    """Column → spread between seeds in percent, pooled over the methods of a setup."""
    percent: dict[str, list[list[Fraction]]] = {}
    for checkpoint in checkpoints:
        for key, scores in checkpoint.by_seed.items():
            percent.setdefault(key, []).append([PERCENT * score for score in scores])
    return {key: significance.pool(of_methods) for key, of_methods in percent.items()}


def estimates(checkpoint: Scored, replicates: Columns, spreads: Spreads) -> dict[str, Estimate]:
    """Column → score with its interval."""
    scores = {}
    for key, value in exact_scores(checkpoint).items():
        scores[key] = estimate(value, [checkpoint.seeds], replicates[key], spreads[key])
    return scores


def estimate(
    value: Fraction,
    runs: Sequence[int],
    replicates: Array,
    spread: SeedSpread | None,
    lowest: float = 0,
    highest: float = PERCENT,
) -> Estimate:
    """A mean over so many training runs, or the difference of two, with its interval.

    The interval ends at the `lowest` and the `highest` value.
    """
    # A pooled spread would give one run an interval too, but it rests on the seeds of other methods
    # alone.
    if spread is None or min(runs) < 2:
        return Estimate(value, uncertainty.interval(float(value), replicates), "problems")
    reach = significance.reach(spread, *runs)
    low, high = max(lowest, float(value) - reach), min(highest, float(value) + reach)
    return Estimate(value, Interval(float(low), float(high)), "seeds")


def trained_runs(checkpoint: Scored) -> int:
    """Training runs behind a score; the untrained student has none."""
    return 0 if checkpoint.method == BASE else checkpoint.seeds


def differences(
    first: Scored, second: Scored, replicates: Sequence[Columns], spreads: Spreads
) -> dict[str, Difference]:
    """Column → first minus second; the replicates of both are on the same draws."""
    subtracted = exact_scores(second)
    runs = (trained_runs(first), trained_runs(second))
    found = {}
    for key, score in exact_scores(first).items():
        value, spread = score - subtracted[key], spreads[key]
        drawn = replicates[0][key] - replicates[1][key]
        gap = estimate(value, runs, drawn, spread, -inf, inf)
        p_value = None
        if spread is not None and gap.over == "seeds":
            p_value = significance.p_value(value, spread, *runs)
        found[key] = Difference(gap, p_value, runs)
    return found


def on_fresh_samples(study: Study, setup: str, checkpoint: Candidate) -> Candidate | None:
    """The checkpoint with counts of fresh samples only; None unless all benchmarks have them."""
    ids = study.fresh_evaluation_ids(setup)
    counts = read_counts(study, checkpoint.units, ids, checkpoint.step, checkpoint.metric)
    return replace(checkpoint, counts=counts) if len(counts) == len(ids) else None


def split_half(pool: Sequence[Candidate]) -> dict[str, float] | None:
    """Column → percent, on half of the problems, of the choice on the other half."""
    named = {candidate.title: candidate for candidate in pool}
    by_candidate = {}
    for key in pool[0].counts:
        by_candidate[key] = np.stack(list(score_matrices(named, key).values()))
    scores = split_half_scores(by_candidate)
    if scores is None:
        return None
    percent = {key: PERCENT * score for key, score in scores.items()}
    return {AVERAGE: sum(percent.values()) / len(percent), **percent}


def leave_one_seed_out(pool: Sequence[Candidate]) -> dict[str, float] | None:
    """Column → percent on one seed of the choice by all others; a mean over the seeds.

    It removes the luck of the choice from the score, but the choices share seeds, so that no test
    rests on it. None with one seed. Ties are settled as by `selection.scores.best_of`, by the order
    of the pool.
    """
    count = pool[0].seeds
    if count < 2:
        return None
    by_seed = [candidate.by_seed for candidate in pool]
    found: dict[str, list[float]] = {}
    for seed in range(count):
        # Sums over the other seeds, exact, so that equal ones tie.
        others = [sum(scores[AVERAGE], Fraction(0)) - scores[AVERAGE][seed] for scores in by_seed]
        for key, scores in by_seed[others.index(max(others))].items():
            found.setdefault(key, []).append(PERCENT * float(scores[seed]))
    return {key: float(np.mean(scores)) for key, scores in found.items()}


def _assess_setup(study: Study, setup: str, chosen: Sequence[Selected]) -> list[RowEvidence]:
    best, fresh, sizes = dict[str, Candidate](), dict[str, Candidate](), dict[str, int]()
    for selected in chosen:
        method = selected.best.method
        best[method], sizes[method] = selected.best, selected.candidates
        rescored = on_fresh_samples(study, setup, selected.best)
        if rescored is not None:
            fresh[method] = rescored
    # Selected and fresh samples are resampled in one go, so that all rest on the same draws of
    # problems.
    renamed = {f"{method} on fresh samples": found for method, found in fresh.items()}
    drawn = replicate_scores(best | renamed)
    spreads, spreads_on_fresh = seed_spreads(best.values()), seed_spreads(fresh.values())
    gaps = to_reference(best, drawn, spreads, sizes)
    rows = []
    for selected in chosen:
        method, again = selected.best.method, dict[str, Estimate]()
        if method in fresh:
            replicates = drawn[f"{method} on fresh samples"]
            again = estimates(fresh[method], replicates, spreads_on_fresh)
        scores = estimates(selected.best, drawn[method], spreads)
        rows.append(_row(selected, scores, again, gaps.get(method, {})))
    return rows


def to_reference(
    checkpoints: Mapping[str, Scored],
    drawn: Mapping[str, Columns],
    spreads: Spreads,
    sizes: Mapping[str, int],
    level: float = LEVEL,
) -> dict[str, dict[str, Difference]]:
    """Method → column → its difference to vanilla; empty without vanilla.

    `sizes` are the numbers of checkpoints that each was chosen from. Differences between equal
    numbers are tested together, corrected for how many they are; others are not tested. `level` is
    smaller where this is one look of several: intervals are wider, and p-values scaled by 0.05 ÷
    level.
    """
    reference = checkpoints.get(REFERENCE)
    if reference is None:
        return {}
    found: dict[str, dict[str, Difference]] = {}
    for method, checkpoint in checkpoints.items():
        if method != REFERENCE:
            replicates = [drawn[method], drawn[REFERENCE]]
            gaps = differences(checkpoint, reference, replicates, spreads)
            if method != BASE:
                gaps = chosen_alike(gaps, (sizes[method], sizes[REFERENCE]))
            found[method] = gaps
    by_seed = [checkpoint.by_seed for checkpoint in checkpoints.values()]
    for key, spread in spreads.items():
        tested = {}
        for method, gaps in found.items():
            if gaps[key].p_value is not None:
                tested[method] = gaps[key]
        if spread is not None and tested:
            equal = significance.brown_forsythe(of_seeds[key] for of_seeds in by_seed)
            for method, gap in _corrected(tested, spread, level).items():
                found[method][key] = replace(gap, equal_variances=equal)
    return found


def chosen_alike(gaps: Mapping[str, Difference], sizes: tuple[int, int]) -> dict[str, Difference]:
    """The differences, untested unless both methods were chosen from equally many checkpoints."""
    if sizes[0] == sizes[1]:
        return dict(gaps)
    return {key: replace(gap, p_value=None, chosen_from=sizes) for key, gap in gaps.items()}


def _corrected(
    gaps: Mapping[str, Difference], spread: SeedSpread, level: float
) -> dict[str, Difference]:
    """Differences to one reference with intervals and p-values corrected for their number."""
    scale, runs_of_reference = LEVEL / level, 0
    values, runs, p_values = [], [], []
    for gap in gaps.values():
        values.append(gap.estimate.value)
        runs.append(gap.runs[0])
        runs_of_reference = gap.runs[1]
        p_values.append(min(1.0, scale * (gap.p_value or 0.0)))
    dunnett = significance.adjusted(values, spread, runs, runs_of_reference, level)
    holm = significance.holm(p_values)
    corrected = {}
    for place, (method, gap) in enumerate(gaps.items()):
        value, reach = float(gap.estimate.value), dunnett.reaches[place]
        estimated = replace(gap.estimate, interval=Interval(value - reach, value + reach))
        p_value = min(1.0, scale * dunnett.p_values[place])
        corrected[method] = Difference(estimated, p_value, gap.runs, len(gaps), holm[place])
    return corrected


def _row(
    selected: Selected,
    scores: Mapping[str, Estimate],
    fresh: Mapping[str, Estimate],
    gaps: Mapping[str, Difference],
) -> RowEvidence:
    best = selected.best
    halves = left_out = None
    if best.metric == PASS_AT_1:  # the score that checkpoints are selected by
        halves, left_out = split_half(selected.pool), leave_one_seed_out(selected.pool)
    columns = {}
    for key, score in scores.items():
        benchmarks = list(best.counts) if key == AVERAGE else [key]  # that the column is made of
        problems = samples = 0
        for name in benchmarks:
            problems += len(best.counts[name][0].problems)  # the same for all seeds
            samples += sum(int(seed.n.sum()) for seed in best.counts[name])
        columns[key] = ColumnEvidence(
            score=score,
            split_half=(halves or {}).get(key),
            fresh=fresh.get(key),
            left_out=(left_out or {}).get(key),
            difference=gaps.get(key),
            problems=problems,
            samples=samples,
            n=None if key == AVERAGE else min(seed.samples for seed in best.counts[key]),
        )
    return RowEvidence(
        setup=selected.setup,
        method=best.method,
        knobs=best.knobs,
        step=best.step,
        units=best.units,
        spread=None if best.spread is None else PERCENT * best.spread,
        candidates=selected.candidates,
        eligible=len(selected.pool),
        complete=best.complete,
        columns=columns,
    )
