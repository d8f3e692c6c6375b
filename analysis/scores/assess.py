"""Selected checkpoints → the evidence behind the table: intervals, differences to vanilla, the bias
of selecting.

With two or more training runs an interval is over seeds, with one it is over problems and says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from analysis.labels import AVERAGE, BASE
from analysis.scores import uncertainty
from analysis.scores.candidates import Candidate, Scored, Selected, read_counts
from analysis.scores.counts import score_matrix
from analysis.scores.evidence import (
    BenchmarkSource,
    ColumnEvidence,
    Difference,
    Estimate,
    Evidence,
    RowEvidence,
)
from analysis.scores.split_half import split_half_scores
from analysis.scores.uncertainty import Array, Interval
from orchestrator.data.benchmarks import benchmark_of
from orchestrator.experiment.methods import REFERENCE
from orchestrator.selection import significance
from orchestrator.selection.metric import PASS_AT_1
from orchestrator.selection.scores import Tally
from orchestrator.selection.significance import SeedSpread
from orchestrator.selection.study import Study

PERCENT = 100
LEVEL = 1 - uncertainty.CONFIDENCE

Columns = dict[str, Array]  # benchmark or `avg` → replicates (B,) in percent
Spreads = Mapping[str, SeedSpread | None]  # benchmark or `avg` → spread between seeds in percent


def assess(study: Study, chosen: Sequence[Selected]) -> Evidence:
    """The evidence for all that was selected. UserError where checkpoints of a setup rest on
    different problems.
    """
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
            sources.append(
                BenchmarkSource(name, key, ids[key], benchmark_of(key, run).identity(run))
            )
    return Evidence(tuple(rows), tuple(sources), spreads)


def replicate_scores(checkpoints: Mapping[str, Candidate]) -> dict[str, Columns]:
    """Name → column → bootstrap replicates of checkpoints of one setup, all on the same draws; the
    average first.

    UserError where they rest on different problems.
    """
    columns: dict[str, Columns] = {name: {} for name in checkpoints}
    metric = next(iter(checkpoints.values())).metric if checkpoints else PASS_AT_1
    # All checkpoints of a setup are resampled together: on the same draws of problems, what two of
    # them share cancels in their difference. Seeds are averaged first, so that a draw takes a
    # problem with all of its seeds.
    for key in next(iter(checkpoints.values())).counts if checkpoints else ():
        ends = np.cumsum([checkpoint.seeds for checkpoint in checkpoints.values()])
        by_seed = np.split(score_matrix(_rows(checkpoints, key), metric), ends[:-1])
        scores = {name: rows.mean(axis=0) for name, rows in zip(checkpoints, by_seed, strict=True)}
        for name, replicates in uncertainty.resample(scores, key).items():
            columns[name][key] = PERCENT * replicates
    return {
        name: {AVERAGE: uncertainty.average(list(row.values())), **row}
        for name, row in columns.items()
    }


def exact_scores(checkpoint: Scored) -> dict[str, Fraction]:
    """Column → exact score in percent; the average first."""
    return {key: PERCENT * statistics.mean(scores) for key, scores in checkpoint.by_seed.items()}


def seed_spreads(checkpoints: Iterable[Scored]) -> dict[str, SeedSpread | None]:
    """Column → spread between seeds in percent, pooled over the methods of a setup; empty without
    any checkpoint.
    """
    by_seed = [checkpoint.by_seed for checkpoint in checkpoints]
    spreads: dict[str, SeedSpread | None] = {}
    for key in by_seed[0] if by_seed else ():
        percent_of_methods = []
        for scores in by_seed:
            percent_of_methods.append([PERCENT * score for score in scores[key]])
        spreads[key] = significance.pool(percent_of_methods)
    return spreads


def estimates(checkpoint: Scored, replicates: Columns, spreads: Spreads) -> dict[str, Estimate]:
    """Column → score with its interval."""
    scores = {}
    for key, value in exact_scores(checkpoint).items():
        scores[key] = estimate(value, checkpoint.seeds, replicates[key], spreads[key])
    return scores


def estimate(
    value: Fraction,
    runs: int,
    replicates: Array,
    spread: SeedSpread | None,
    highest: float = PERCENT,
) -> Estimate:
    """A mean over training runs with its interval, which ends at 0 and at the `highest` value."""
    # A pooled spread would give one run an interval too, but it rests on the seeds of other methods
    # alone.
    if spread is None or runs < 2:
        return Estimate(value, uncertainty.interval(float(value), replicates), "problems")
    reach = significance.reach(spread, runs)
    low, high = max(0.0, float(value) - reach), min(float(highest), float(value) + reach)
    return Estimate(value, Interval(low, high), "seeds")


def trained_runs(checkpoint: Scored) -> int:
    """Training runs behind a score; the untrained student has none."""
    return 0 if checkpoint.method == BASE else checkpoint.seeds


def differences(
    first: Scored, second: Scored, replicates: Sequence[Columns], spreads: Spreads
) -> dict[str, Difference]:
    """Column → first minus second; the replicates of both are on the same draws."""
    scores, subtracted = exact_scores(first), exact_scores(second)
    runs = (trained_runs(first), trained_runs(second))
    found = {}
    for key in scores:
        value, spread = scores[key] - subtracted[key], spreads[key] if min(runs) > 1 else None
        if spread is None:
            within = uncertainty.interval(float(value), replicates[0][key] - replicates[1][key])
            found[key] = Difference(Estimate(value, within, "problems"), None, runs)
        else:
            reach = significance.reach(spread, *runs)
            within = Interval(float(value) - reach, float(value) + reach)
            found[key] = Difference(
                Estimate(value, within, "seeds"), significance.p_value(value, spread, *runs), runs
            )
    return found


def on_fresh_samples(study: Study, setup: str, checkpoint: Candidate) -> Candidate | None:
    """The checkpoint with counts of samples that took no part in selecting it; None unless all
    benchmarks have them.
    """
    ids = study.fresh_evaluation_ids(setup)
    counts = read_counts(study, checkpoint.units, ids, checkpoint.step, checkpoint.metric)
    return replace(checkpoint, counts=counts) if len(counts) == len(ids) else None


def split_half(pool: Sequence[Candidate]) -> dict[str, float] | None:
    """Column → score in percent of what is selected on half of the problems, on the other half; the
    average first.
    """
    named = {candidate.title: candidate for candidate in pool}
    by_candidate = {}
    for key in pool[0].counts:
        # Every candidate of a family has the same seeds, whose rows follow each other: (candidates
        # · seeds, problems).
        by_seed = score_matrix(_rows(named, key))
        by_candidate[key] = by_seed.reshape(len(pool), pool[0].seeds, -1).mean(axis=1)
    scores = split_half_scores(by_candidate)
    if scores is None:
        return None
    percent = {key: PERCENT * score for key, score in scores.items()}
    return {AVERAGE: sum(percent.values()) / len(percent), **percent}


def leave_one_seed_out(pool: Sequence[Candidate]) -> dict[str, float] | None:
    """Column → score in percent of what all seeds but one choose, on that one; its mean over the
    seeds.

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
    best = {selected.best.method: selected.best for selected in chosen}
    fresh = {}
    for method, checkpoint in best.items():
        rescored = on_fresh_samples(study, setup, checkpoint)
        if rescored is not None:
            fresh[_fresh(method)] = rescored
    # Selected and fresh samples are resampled in one go, so that all rest on the same draws of
    # problems.
    drawn = replicate_scores({**best, **fresh})
    spreads, spreads_on_fresh = seed_spreads(best.values()), seed_spreads(fresh.values())
    gaps = to_reference(
        best, drawn, spreads, {selected.best.method: selected.candidates for selected in chosen}
    )
    rows = []
    for selected in chosen:
        method = selected.best.method
        name = _fresh(method)
        again = estimates(fresh[name], drawn[name], spreads_on_fresh) if name in fresh else None
        rows.append(
            _row(
                selected, estimates(selected.best, drawn[method], spreads), again, gaps.get(method)
            )
        )
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
            found[method] = differences(
                checkpoint, reference, [drawn[method], drawn[REFERENCE]], spreads
            )
            if method != BASE:
                found[method] = chosen_alike(found[method], (sizes[method], sizes[REFERENCE]))
    for key, spread in spreads.items():
        tested = {
            method: gaps[key] for method, gaps in found.items() if gaps[key].p_value is not None
        }
        if spread is not None and tested:
            for method, gap in zip(
                tested, _corrected(list(tested.values()), spread, level), strict=True
            ):
                found[method][key] = gap
    return found


def chosen_alike(gaps: Mapping[str, Difference], sizes: tuple[int, int]) -> dict[str, Difference]:
    """The differences, untested unless both methods were chosen from equally many checkpoints."""
    if sizes[0] == sizes[1]:
        return dict(gaps)
    return {key: replace(gap, p_value=None, chosen_from=sizes) for key, gap in gaps.items()}


def _corrected(gaps: Sequence[Difference], spread: SeedSpread, level: float) -> list[Difference]:
    """Differences to one reference with intervals and p-values corrected for their number."""
    values = [gap.estimate.value for gap in gaps]
    by_dunnett = significance.adjusted(
        values, spread, [gap.runs[0] for gap in gaps], gaps[0].runs[1], level
    )
    scale = LEVEL / level
    by_holm = significance.holm([min(1.0, scale * (gap.p_value or 0.0)) for gap in gaps])
    corrected = []
    for gap, p, reach, holm in zip(
        gaps, by_dunnett.p_values, by_dunnett.reaches, by_holm, strict=True
    ):
        value = float(gap.estimate.value)
        estimate = replace(gap.estimate, interval=Interval(value - reach, value + reach))
        corrected.append(
            replace(
                gap, estimate=estimate, p_value=min(1.0, scale * p), adjusted=len(gaps), holm=holm
            )
        )
    return corrected


def _row(
    selected: Selected,
    scores: dict[str, Estimate],
    fresh: dict[str, Estimate] | None,
    gaps: dict[str, Difference] | None,
) -> RowEvidence:
    best, halves, left_out = selected.best, None, None
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
            split_half=halves[key] if halves else None,
            fresh=fresh[key] if fresh else None,
            left_out=left_out[key] if left_out else None,
            difference=gaps[key] if gaps else None,
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


def _rows(checkpoints: Mapping[str, Candidate], benchmark: str) -> dict[str, Tally]:
    """Counts of every seed of every checkpoint, in their order, under names for a message."""
    rows = {}
    for name, checkpoint in checkpoints.items():
        for unit, counts in zip(checkpoint.units, checkpoint.counts[benchmark], strict=True):
            rows[f"{name} {unit} {benchmark}"] = counts
    return rows


def _fresh(method: str) -> str:
    return f"{method} on fresh samples"
