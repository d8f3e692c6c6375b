"""Selected checkpoints → intervals, differences to vanilla, and the bias of selecting.

With two or more training runs an interval is over seeds, with one it is over problems and says so.
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from analysis.facts import intervals
from analysis.facts.candidates import (
    Candidate,
    Scored,
    Selected,
    read_counts,
    score_matrices,
    select,
)
from analysis.facts.evidence import (
    BenchmarkSource,
    Collapse,
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
from orchestrator.selection.scores import PASS_AT_1, Metric, evaluated_steps
from orchestrator.selection.significance import LEVEL, RunSpread, TDistribution
from orchestrator.selection.study import Study

PERCENT = 100

Columns = dict[str, Array]  # benchmark or `avg` → replicates (B,) in percent


def assess(known: Facts, chosen: Sequence[Selected]) -> Facts:
    """The facts with the rows of all that was chosen; UserError if a setup's problems differ."""
    study = known.study
    rows: list[RowEvidence] = []
    for name in study.experiment.setups:
        of_setup = [selected for selected in chosen if selected.setup == name]
        rows += _assess_setup(study, name, of_setup)
    sources = []
    for name, setup in study.experiment.setups.items():
        ids = study.evaluation_ids(name)
        for key, run in setup.evaluation.benchmarks.items():
            identity = benchmark_of(key, run).identity(run)
            sources.append(BenchmarkSource(name, key, ids[key], identity))
    return replace(known, rows=tuple(rows), benchmarks=tuple(sources))


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


def run_spreads(checkpoint: Scored) -> dict[str, RunSpread | None]:
    """Column → spread of the method's runs in percent; None with one run, and for the untrained."""
    sampling, trained = checkpoint.sampling, trained_runs(checkpoint)
    found: dict[str, RunSpread | None] = {}
    for key, scores in checkpoint.by_seed.items():
        percent = [PERCENT * score for score in scores[:trained]]
        found[key] = significance.spread_of(percent, PERCENT**2 * sampling.get(key, 0.0))
    return found


def estimates(checkpoint: Scored, replicates: Columns) -> dict[str, Estimate]:
    """Column → score with its interval."""
    scores, spreads = {}, run_spreads(checkpoint)
    for key, value in exact_scores(checkpoint).items():
        scores[key] = estimate(value, significance.of_mean(spreads[key]), replicates[key])
    return scores


def estimate(
    value: Fraction,
    over_runs: TDistribution | None,
    replicates: Array,
    lowest: float = 0,
    highest: float = PERCENT,
) -> Estimate:
    """A mean over training runs, or the difference of two, with its interval.

    It is over problems where the value has no distribution `over_runs`, and ends at the `lowest`
    and the `highest` value.
    """
    if over_runs is None:
        return Estimate(value, intervals.interval(float(value), replicates), "problems")
    reach = over_runs.reach()
    low, high = max(lowest, float(value) - reach), min(highest, float(value) + reach)
    return Estimate(value, Interval(float(low), float(high)), "seeds")


@dataclass(frozen=True)
class MethodRuns:
    """How the finished runs of a method's chosen checkpoint scatter in their averages, in points.

    `sampling` is the variance by the sampling of responses alone; None with one sample a problem.
    """

    setup: str
    method: str
    spread: RunSpread
    sampling: float | None


def finished_runs(study: Study) -> list[MethodRuns]:
    """The runs of each method that has two or more: confirming ones, else those of the choice.

    A method whose runs show no spread, by their scores or by sampling, is left out.
    """
    found = []
    confirmed = {setup: confirmed_candidates(study, setup) for setup in study.experiment.setups}
    for selected in select(study):
        best = confirmed[selected.setup].get(selected.best.method, selected.best)
        spread = run_spreads(best)[AVERAGE]
        if best.complete and spread is not None and spread.deviation > 0:
            alone = any(run.samples < 2 for runs in best.counts.values() for run in runs)
            sampling = None if alone else PERCENT**2 * best.sampling[AVERAGE]
            found.append(MethodRuns(selected.setup, best.method, spread, sampling))
    return found


def trained_runs(checkpoint: Scored) -> int:
    """Training runs behind a score; the untrained student has none."""
    return 0 if checkpoint.method == BASE else checkpoint.seeds


def differences(
    others: Mapping[str, Scored],
    reference: Scored,
    drawn: Mapping[str, Columns],
    sizes: Mapping[str, int],
    level: float = LEVEL,
    clocked: bool = False,
    name: str | None = None,
) -> dict[str, dict[str, Difference]]:
    """Method → column → its score minus the reference's, each with its outcome.

    `drawn` has the replicates of all by method, on the same draws, and `sizes` the numbers of
    checkpoints that each was chosen from; `name` is the reference's there, by default its method.
    The tested differences of a column are corrected for how many they are. `level` is smaller where
    this is one look of several: intervals are wider, and p-values scaled by 0.05 ÷ level. A
    `clocked` difference has no p-value: a clock has a spread of its own, which the spread between
    seeds does not hold.
    """
    found: dict[str, dict[str, Difference]] = {method: {} for method in others}
    name = name or reference.method
    subtracted, spreads = exact_scores(reference), run_spreads(reference)
    values = {method: exact_scores(other) for method, other in others.items()}
    own = {method: run_spreads(other) for method, other in others.items()}
    for key in subtracted:
        gaps: dict[str, Difference] = {}
        distributions: dict[str, TDistribution] = {}
        for method, other in others.items():
            runs = (trained_runs(other), trained_runs(reference))
            replicates = drawn[method][key] - drawn[name][key]
            value = values[method][key] - subtracted[key]
            over_runs = significance.of_difference(own[method][key], spreads[key])
            gap = estimate(value, over_runs, replicates, -PERCENT)
            of = (sizes.get(method, 1), sizes.get(name, 1))
            outcome = decide(runs, of, over_runs is not None, clocked)
            gaps[method] = Difference(gap, runs, outcome, of)
            if over_runs is not None and outcome == "tested":
                distributions[method] = over_runs
        for method, gap in (gaps | with_tests(gaps, distributions, level)).items():
            found[method][key] = gap
    return found


def to_reference(
    checkpoints: Mapping[str, Scored],
    drawn: Mapping[str, Columns],
    sizes: Mapping[str, int],
    level: float = LEVEL,
    clocked: bool = False,
) -> dict[str, dict[str, Difference]]:
    """The `differences` of all others to vanilla; empty without vanilla."""
    others = dict(checkpoints)
    reference = others.pop(REFERENCE, None)
    if reference is None:
        return {}
    return differences(others, reference, drawn, sizes, level, clocked)


def decide(
    runs: tuple[int, int], of: tuple[int, int], differ: bool, clocked: bool = False
) -> Outcome:
    """Whether two scores are tested, over so many runs and the best of so many, or why not."""
    if 0 in runs:
        return "untrained"
    if of[0] != of[1]:
        return "unequal choice"
    if 1 in runs:
        return "one seed"
    if not differ:
        return "no spread"
    return "clocked" if clocked else "tested"


def with_tests(
    gaps: Mapping[str, Difference], distributions: Mapping[str, TDistribution], level: float
) -> dict[str, Difference]:
    """Differences to one reference with intervals and p-values corrected for their number."""
    scale, tested = LEVEL / level, {method: gaps[method] for method in distributions}
    values, over_runs = [gap.estimate.value for gap in tested.values()], [*distributions.values()]
    alone = [
        min(1.0, scale * own.p_value(value)) for value, own in zip(values, over_runs, strict=True)
    ]
    holm, found = significance.holm(alone), significance.adjusted(values, over_runs, level)
    corrected = {}
    for place, (method, gap) in enumerate(tested.items()):
        value, reach = float(gap.estimate.value), found.reaches[place]
        corrected[method] = replace(
            gap,
            estimate=replace(
                gap.estimate,
                interval=Interval(max(-PERCENT, value - reach), min(PERCENT, value + reach)),
            ),
            p_value=min(1.0, scale * found.p_values[place]),
            corrected_for=len(tested),
            holm=holm[place],
        )
    return corrected


def relabelled(
    gaps: Mapping[str, Mapping[str, Difference]], checkpoints: Mapping[str, Scored], reference: str
) -> dict[str, dict[str, Difference]]:
    """The differences by method and column, tested averages with their p-values by permutation."""
    found = {method: dict(columns) for method, columns in gaps.items()}
    tested = [method for method, columns in gaps.items() if columns[AVERAGE].outcome == "tested"]
    if tested:
        runs = [checkpoints[method].by_seed[AVERAGE] for method in tested]
        p_values = significance.permutation_p(checkpoints[reference].by_seed[AVERAGE], runs)
        for method, p in zip(tested, p_values, strict=True):
            found[method][AVERAGE] = replace(found[method][AVERAGE], permutation=p)
    return found


# --- runs that end below the untrained student ---


def _collapses(
    averages: Mapping[str, Mapping[int, Sequence[Fraction]]],
    untrained: Fraction | None,
    level: float = LEVEL,
) -> dict[str, Collapse]:
    """Method → how many of its runs collapse, from its averages by evaluated step, (runs,) each.

    `level` is smaller where this is one look of several: p-values are scaled by 0.05 ÷ level.
    """
    if untrained is None:
        return {}
    found = {}
    for method, by_step in averages.items():
        runs = range(len(next(iter(by_step.values()))))
        found[method] = Collapse(tuple(_collapse_step(by_step, run, untrained) for run in runs))
    reference = found.get(REFERENCE)
    # One run says as little of collapses as of scores.
    tested = [method for method, own in found.items() if method != REFERENCE and own.runs > 1]
    if reference is None or reference.runs == 1:
        return found
    for method in tested:
        own = found[method]
        counts = (own.collapsed, own.runs), (reference.collapsed, reference.runs)
        p = min(1.0, LEVEL / level * len(tested) * significance.collapse_p(*counts))
        found[method] = replace(own, p_value=p)
    return found


def _collapse_step(
    by_step: Mapping[int, Sequence[Fraction]], run: int, untrained: Fraction
) -> int | None:
    """The evaluated step from which on a run stays below the untrained student."""
    since = None
    for step in sorted(by_step, reverse=True):
        if by_step[step][run] >= untrained:
            return since
        since = step
    return since


def _averages(study: Study, setup: str, best: Candidate) -> dict[int, list[Fraction]]:
    """Step → the average of each run of a setting, at every step where all runs are evaluated.

    Where a race dropped a step it has few samples, and counts all the same: a run that falls from
    its best step on is dropped there.
    """
    ids, found = study.evaluation_ids(setup), dict[int, list[Fraction]]()
    units = [unit for unit in study.units if unit.id in best.units]
    runs = [study.reader(unit) for unit in units]
    for step in evaluated_steps(units[0], runs, ids):
        counts = read_counts(study, best.units, ids, step, best.metric)
        if len(counts) == len(ids):
            found[step] = replace(best, step=step, counts=counts).by_seed[AVERAGE]
    return found


def _untrained(chosen: Sequence[Selected], setup: str) -> Fraction | None:
    """The average of the untrained student; None before it is evaluated, and without pass@1."""
    for selected in chosen:
        best = selected.best
        if selected.setup == setup and best.method == BASE and best.metric == PASS_AT_1:
            return best.mean
    return None


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
    gaps = relabelled(to_reference(best, drawn, sizes), best, REFERENCE)
    collapses = _collapses(
        {method: _averages(study, setup, each) for method, each in best.items() if method != BASE},
        _untrained(chosen, setup),
    )
    rows = []
    for selected in chosen:
        method, again = selected.best.method, dict[str, Estimate]()
        if method in fresh:
            again = estimates(fresh[method], drawn[f"{method} on fresh samples"])
        scores = estimates(selected.best, drawn[method])
        row = _row(selected, scores, again, gaps.get(method, {}))
        rows.append(replace(row, collapse=collapses.get(method)))
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
        drawn, sizes = replicate_scores(candidates), dict.fromkeys(candidates, 1)
        gaps = to_reference(candidates, drawn, sizes, level(study.experiment))
        if study.experiment.confirm.until is None:
            gaps = relabelled(gaps, candidates, REFERENCE)
        at_step = {
            method: {found.step: found.by_seed[AVERAGE]} for method, found in candidates.items()
        }
        untrained = _untrained(chosen, setup)
        collapses = _collapses(at_step, untrained, level(study.experiment))
        for candidate, confirmation in zip(scored, found, strict=True):
            method, columns = candidate.method, {}
            if method in candidates:
                for key, score in estimates(candidate, drawn[method]).items():
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
                sampling=candidate.sampling.get(AVERAGE, 0.0) if columns else 0.0,
                collapse=collapses.get(method),
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
    sampling: Mapping[str, float]

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
            sampling = sum(row.sampling for row in of_setups.values()) / len(of_setups) ** 2
            averaged[method] = _Averaged(method, {AVERAGE: means}, {AVERAGE: sampling})
    if REFERENCE not in averaged:
        return ()
    # Replicates are for scores of single runs; a method is confirmed on two seeds at least.
    drawn = dict.fromkeys(averaged, Columns({AVERAGE: np.zeros(1)}))
    gaps = to_reference(averaged, drawn, dict.fromkeys(averaged, 1), level)
    found = []
    for method, of_columns in gaps.items():
        if of_columns[AVERAGE].outcome != "tested":
            continue
        leads: list[Fraction] = []
        for name, row in by_method[method].items():
            means = (statistics.mean(each.averages) for each in (row, reference[name]))
            leads.append(PERCENT * operator.sub(*means))
        seeds = averaged[method].seeds
        found.append(MeanDifference(method, of_columns[AVERAGE], tuple(leads), seeds))
    return tuple(found)
