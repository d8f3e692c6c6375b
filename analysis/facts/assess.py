"""Selected checkpoints → intervals, differences to vanilla, and the bias of selecting.

With two or more training runs an interval is over seeds, with one it is over problems and says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf

import numpy as np

from analysis.facts import intervals
from analysis.facts.candidates import Candidate, Scored, Selected, read_counts, score_matrices
from analysis.facts.evidence import (
    BenchmarkSource,
    ColumnEvidence,
    ConfirmedColumn,
    ConfirmedRow,
    Difference,
    Estimate,
    Facts,
    MeanDifference,
    Outcome,
    RowEvidence,
)
from analysis.facts.intervals import Array, Interval, split_half_scores
from analysis.labels import AVERAGE, BASE
from orchestrator.data.benchmarks import benchmark_of
from orchestrator.experiment.methods import REFERENCE
from orchestrator.selection import significance
from orchestrator.selection.confirmation import Confirmation, confirmations, evaluated_units, level
from orchestrator.selection.scores import PASS_AT_1, Metric
from orchestrator.selection.significance import SeedSpread
from orchestrator.selection.study import Study

PERCENT = 100
LEVEL = 1 - intervals.CONFIDENCE

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
        scores = intervals.resample(score_matrices(checkpoints, key), key)
        for name, replicates in scores.items():
            columns[name][key] = PERCENT * replicates
    for name, of_benchmarks in columns.items():
        mean = intervals.average(list(of_benchmarks.values()))
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
        return Estimate(value, intervals.interval(float(value), replicates), "problems")
    reach = significance.reach(spread, *runs)
    low, high = max(lowest, float(value) - reach), min(highest, float(value) + reach)
    return Estimate(value, Interval(float(low), float(high)), "seeds")


def trained_runs(checkpoint: Scored) -> int:
    """Training runs behind a score; the untrained student has none."""
    return 0 if checkpoint.method == BASE else checkpoint.seeds


def differences(
    others: Mapping[str, Scored],
    reference: Scored,
    drawn: Mapping[str, Columns],
    spreads: Spreads,
    sizes: Mapping[str, int],
    level: float = LEVEL,
    clocked: bool = False,
) -> dict[str, dict[str, Difference]]:
    """Method → column → its score minus the reference's, each with its outcome.

    `drawn` has the replicates of all by method, on the same draws, and `sizes` the numbers of
    checkpoints that each was chosen from. The tested differences of a column are corrected for how
    many they are. `level` is smaller where this is one look of several: intervals are wider, and
    p-values scaled by 0.05 ÷ level. A `clocked` difference has no p-value: a clock has a spread of
    its own, which the spread between seeds does not hold.
    """
    found: dict[str, dict[str, Difference]] = {method: {} for method in others}
    subtracted = exact_scores(reference)
    values = {method: exact_scores(other) for method, other in others.items()}
    by_seed = [each.by_seed for each in (*others.values(), reference)]
    for key, spread in spreads.items():
        gaps: dict[str, Difference] = {}
        for method, other in others.items():
            runs = (trained_runs(other), trained_runs(reference))
            replicates = drawn[method][key] - drawn[reference.method][key]
            value = values[method][key] - subtracted[key]
            gap = estimate(value, runs, replicates, spread, -inf, inf)
            of = (sizes.get(method, 1), sizes.get(reference.method, 1))
            gaps[method] = Difference(gap, runs, _outcome(runs, of, spread, clocked), of)
        tested = {name: gap for name, gap in gaps.items() if gap.outcome == "tested"}
        if spread is not None and tested:
            equal = significance.brown_forsythe(of_seeds[key] for of_seeds in by_seed)
            gaps |= _tested(tested, spread, level, equal)
        for method, gap in gaps.items():
            found[method][key] = gap
    return found


def to_reference(
    checkpoints: Mapping[str, Scored],
    drawn: Mapping[str, Columns],
    spreads: Spreads,
    sizes: Mapping[str, int],
    level: float = LEVEL,
    clocked: bool = False,
) -> dict[str, dict[str, Difference]]:
    """The `differences` of all others to vanilla; empty without vanilla."""
    others = dict(checkpoints)
    reference = others.pop(REFERENCE, None)
    if reference is None:
        return {}
    return differences(others, reference, drawn, spreads, sizes, level, clocked)


def _outcome(
    runs: tuple[int, int], of: tuple[int, int], spread: SeedSpread | None, clocked: bool
) -> Outcome:
    """Whether two scores are tested, over so many runs and the best of so many, or why not."""
    if 0 in runs:
        return "untrained"
    if of[0] != of[1]:
        return "unequal choice"
    if 1 in runs:
        return "one seed"
    if spread is None:
        return "no spread"
    return "clocked" if clocked else "tested"


def _tested(
    gaps: Mapping[str, Difference], spread: SeedSpread, level: float, equal: float | None
) -> dict[str, Difference]:
    """Differences to one reference with intervals and p-values corrected for their number."""
    scale, values, runs, control = LEVEL / level, [], [], 0
    p_values: list[float] = []
    for gap in gaps.values():
        own, control = gap.runs
        values.append(gap.estimate.value)
        runs.append(own)
        p_values.append(
            min(1.0, scale * significance.p_value(gap.estimate.value, spread, *gap.runs))
        )
    dunnett = significance.adjusted(values, spread, runs, control, level)
    holm = significance.holm(p_values)
    corrected = {}
    for place, (method, gap) in enumerate(gaps.items()):
        value, reach = float(gap.estimate.value), dunnett.reaches[place]
        corrected[method] = replace(
            gap,
            estimate=replace(gap.estimate, interval=Interval(value - reach, value + reach)),
            p_value=min(1.0, scale * dunnett.p_values[place]),
            corrected_for=len(gaps),
            holm=holm[place],
            equal_variances=equal,
        )
    return corrected


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


# --- confirmed checkpoints, over runs that took no part in choosing, tested by vanilla's ---


def confirmed_rows(
    study: Study, chosen: Sequence[Selected], metric: Metric = PASS_AT_1
) -> list[ConfirmedRow]:
    """A row for each settled family to be confirmed, by setup and in the order of the grid.

    UserError where two runs of a setup were evaluated on different problems.
    """
    explored = {}
    for selected in chosen:
        explored[selected.setup, selected.best.method] = exact_scores(selected.best)
    by_setup: dict[str, list[Confirmation]] = {}
    for confirmation in confirmations(study):
        by_setup.setdefault(confirmation.units[0].setup, []).append(confirmation)
    rows: list[ConfirmedRow] = []
    for setup, found in by_setup.items():
        scored = [_scored(study, confirmation, metric) for confirmation in found]
        candidates = {}
        for candidate in scored:
            if candidate.units and (setup, candidate.method) in explored:
                candidates[candidate.method] = candidate
        drawn, spreads = replicate_scores(candidates), seed_spreads(candidates.values())
        sizes = dict.fromkeys(candidates, 1)
        gaps = to_reference(candidates, drawn, spreads, sizes, level(study.experiment))
        for candidate, confirmation in zip(scored, found, strict=True):
            method, columns = candidate.method, {}
            if method in candidates:
                for key, score in estimates(candidate, drawn[method], spreads).items():
                    gap = gaps.get(method, {}).get(key)
                    columns[key] = ConfirmedColumn(score, explored[setup, method][key], gap)
            row = ConfirmedRow(
                setup=setup,
                method=method,
                knobs=candidate.knobs,
                step=candidate.step,
                units=candidate.units if columns else (),
                wanted=len(confirmation.units),
                columns=columns,
                averages=tuple(candidate.by_seed[AVERAGE]) if columns else (),
            )
            rows.append(row)
    return rows


def confirmed_candidates(study: Study, setup: str) -> dict[str, Candidate]:
    """Method → its confirmed checkpoint in a setup, once all its confirming runs are evaluated."""
    found = {}
    for confirmation in confirmations(study):
        if confirmation.units[0].setup == setup:
            candidate = _scored(study, confirmation, PASS_AT_1)
            if candidate.seeds == len(confirmation.units):
                found[candidate.method] = candidate
    return found


def _scored(study: Study, confirmation: Confirmation, metric: Metric) -> Candidate:
    """The confirmed checkpoint with the counts of its runs that are evaluated by now.

    It has no counts where some of these lack the votes or the samples that the metric needs.
    """
    first, ids = confirmation.units[0], study.fresh_evaluation_ids(confirmation.units[0].setup)
    units = tuple(unit.id for unit in evaluated_units(study, confirmation))
    counts = read_counts(study, units, ids, confirmation.step, metric)
    if len(counts) < len(ids):
        units, counts = (), {}
    assert first.method is not None, "only methods are confirmed"
    return Candidate(first.method, first.knobs, confirmation.step, units, counts, metric=metric)


# --- each method's difference to vanilla, averaged over the setups of an experiment ---

# A run of a seed in every setup counts as one: its score is the mean of its averages. Intervals and
# p-values are therefore over seeds, and take the setups as given. A difference that is too small to
# be seen in one setup may show over several of them.


@dataclass(frozen=True)
class _Averaged:
    """A method's scores over all setups, as the tests of one setup read them (`Scored`)."""

    method: str
    by_seed: Mapping[str, Sequence[Fraction]]

    @property
    def seeds(self) -> int:
        return len(self.by_seed[AVERAGE])


def across_setups(
    rows: Sequence[ConfirmedRow], setups: Collection[str], level: float = LEVEL
) -> tuple[MeanDifference, ...]:
    """A row for each method but vanilla that is confirmed on the same seeds in every setup.

    `rows` are those of one experiment, and `setups` all that it has. The result is empty with one
    setup, and before vanilla and another method are confirmed in all of them. `level` is as in
    `differences`.
    """
    by_method: dict[str, dict[str, ConfirmedRow]] = {}
    for row in rows:
        if row.complete and row.columns:
            by_method.setdefault(row.method, {})[row.setup] = row
    reference = by_method.get(REFERENCE, {})
    if len(setups) < 2 or len(reference) < len(setups):
        return ()
    averaged: dict[str, _Averaged] = {}
    for method, of_setups in by_method.items():
        # A rule that adds seeds until a difference is settled gives each setup its own number.
        seeds = {len(row.averages) for row in (*of_setups.values(), *reference.values())}
        if len(of_setups) == len(setups) and len(seeds) == 1:
            of_runs = zip(*(row.averages for row in of_setups.values()), strict=True)
            means = [statistics.mean(of_seed) for of_seed in of_runs]
            averaged[method] = _Averaged(method, {AVERAGE: means})
    spreads = seed_spreads(averaged.values())
    if REFERENCE not in averaged or spreads[AVERAGE] is None:
        return ()
    # Replicates are for scores of single runs; a method is confirmed on two seeds at least.
    drawn = dict.fromkeys(averaged, Columns({AVERAGE: np.zeros(1)}))
    gaps = to_reference(averaged, drawn, spreads, dict.fromkeys(averaged, 1), level)
    found = []
    for method, of_columns in gaps.items():
        ahead = 0
        for name, row in by_method[method].items():
            ahead += sum(row.averages) > sum(reference[name].averages)
        seeds = averaged[method].seeds
        found.append(MeanDifference(method, of_columns[AVERAGE], len(setups), ahead, seeds))
    return tuple(found)
