"""Run directories → the results table. Reads, never writes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from analysis.labels import BASE, benchmark_label, method_label, setup_title
from analysis.scores.across_setups import across_setups
from analysis.scores.assess import assess, exact_scores
from analysis.scores.candidates import Candidate, Selected, read_counts, select
from analysis.scores.confirmed import confirmed_rows
from analysis.scores.equal_cost import cost_tables
from analysis.scores.responses import with_responses
from analysis.scores.verdict import verdict
from analysis.table.model import Score, Table, make_table
from orchestrator.errors import refuse
from orchestrator.selection import scores as selection
from orchestrator.selection.confirmation import level, missing_units, with_confirmation
from orchestrator.selection.scores import PASS_AT_1, Metric
from orchestrator.selection.study import Study

__all__ = ["Candidate", "Selected", "base_scores", "results_table", "select"]

Depth = Literal["scores", "intervals", "all"]

PERCENT = 100
FEW_PROBLEMS = 30  # the smallest of the paper's benchmarks has as many


def results_table(
    study: Study, metric: Metric = PASS_AT_1, cost: str = "updates", depth: Depth = "all"
) -> Table:
    """The paper's table so far, with what it rests on; notes say what is missing.

    A benchmark that was added to finished trials leaves the columns of the others as they are.
    Their rows are selected without it, and averages, evidence and verdict wait until it is
    evaluated. Checkpoints are selected by pass@1, whatever the `metric` is. `cost` is the measure
    of `analysis.costs` at which methods are compared, too. A look that goes on can do with less
    `depth`: "scores" has no evidence and no notes, "intervals" lacks the comparison at equal cost
    and the numbers of the responses, which take most of the time. UserError where two selected
    checkpoints of a setup were evaluated on different problems, or where a problem has fewer than k
    samples.
    """
    study = with_confirmation(study.snapshot())
    awaited = _awaited(study)
    selected = select(_without(study, awaited))
    chosen: list[Selected] = []
    by_family: dict[tuple[str, str], dict[str, Fraction]] = {}
    for each in selected:
        rescored = _rescored(study, each, metric)
        if rescored is not None:
            chosen.append(rescored)
            by_family[each.setup, each.best.method] = exact_scores(rescored.best)
    families = [BASE, *study.experiment.methods]
    scores, titles, labels = [], {}, {}
    for name, setup in study.experiment.setups.items():
        titles[name] = setup_title(name, study.experiment.setups)
        for key, run in setup.evaluation.benchmarks.items():
            labels[name, key] = benchmark_label(key, run)
        # Every method of the experiment has its row, with empty cells before its first scores.
        for family in families:
            known = by_family.get((name, family), {})
            for key in setup.evaluation.benchmarks:
                scores.append(Score(family, name, key, known.get(key)))
    if depth == "scores":
        return make_table(scores, titles=titles, labels=labels, metric=metric)
    evidence = assess(study, [] if awaited else chosen)
    if not awaited:
        confirmed = tuple(confirmed_rows(study, chosen, metric))
        across = across_setups(confirmed, study.experiment.setups, level(study.experiment))
        evidence = replace(evidence, confirmed=confirmed, across=across)
    if not awaited and depth == "all":
        costs = tuple(cost_tables(study, chosen, cost))
        evidence = replace(with_responses(study, evidence, chosen), costs=costs)
    remarks = [] if metric == PASS_AT_1 else _about(metric, study, selected, chosen)
    for key in awaited:
        until_then = "rows are selected on the other columns until then"
        remarks.append(f"waiting for {labels[key]}: {until_then}")
    remarks += notes(study, [] if awaited else chosen)
    study.remember()
    judged = verdict(study, evidence)
    return make_table(scores, remarks, evidence, titles, labels, judged, metric)


def _rescored(study: Study, selected: Selected, metric: Metric) -> Selected | None:
    """The same checkpoint by another metric; None if evaluators did not note the right answers."""
    best = selected.best
    for key, seeds in best.counts.items():
        least = min(seed.samples for seed in seeds)
        if metric.k > least:
            samples = f"the samples of each problem of {key} in {selected.setup}"
            raise refuse("--metric", str(metric), f"a k of at most {least}, {samples}")
    if metric.kind == "pass":
        return replace(selected, best=replace(best, metric=metric))
    ids = study.evaluation_ids(selected.setup)
    wanted = {key: ids[key] for key in best.counts}
    counts = read_counts(study, best.units, wanted, best.step, metric)
    if len(counts) < len(wanted):
        return None
    return replace(selected, best=replace(best, counts=counts, metric=metric))


def _about(
    metric: Metric, study: Study, selected: Sequence[Selected], scored: Sequence[Selected]
) -> list[str]:
    """Notes on a metric that no checkpoint was selected by: what it is, and which rows lack it."""
    k = metric.k
    if metric.kind == "pass":
        remarks = [
            f"{metric}: one of {k} samples is right, unbiased; checkpoints are selected by pass@1"
        ]
    else:
        remarks = [
            f"{metric}: the most frequent of {k} answers is right, exact over all choices of {k} samples; right "
            "answers vote together, a sample without an answer has no vote, and one of m answers that tie counts "
            "1/m; checkpoints are selected by pass@1"
        ]
    known = {(each.setup, each.best.method) for each in scored}
    lacking = []
    for each in selected:
        if (each.setup, each.best.method) not in known:
            lacking.append(f"{each.setup} {method_label(each.best.method)}")
    if lacking:
        remarks.append(
            f"no {metric} of {', '.join(lacking)}: an older version did not note which answers were right; "
            f"{study.invocation.command('regrade')} does"
        )
    return remarks


def _awaited(study: Study) -> list[tuple[str, str]]:
    """(setup, benchmark) without any sample of a trained family that has some of another one."""
    awaited: dict[tuple[str, str], None] = {}
    for family in study.families():
        runs = [study.reader(unit) for unit in itertools.chain(*family)]
        if not family[0][0].is_trial or not all(run.trained for run in runs):
            continue
        setup = family[0][0].setup
        ids, unsampled = study.evaluation_ids(setup), []
        for key, evaluation_id in ids.items():
            if not any(run.evaluated_steps(evaluation_id) for run in runs):
                unsampled.append(key)
        if len(unsampled) < len(ids):
            for key in unsampled:
                awaited[setup, key] = None
    return list(awaited)


def _without(study: Study, awaited: list[tuple[str, str]]) -> Study:
    """The study whose setups lack the awaited benchmarks."""
    setups = dict(study.experiment.setups)
    for name, key in awaited:
        evaluation = setups[name].evaluation
        others = {other: run for other, run in evaluation.benchmarks.items() if other != key}
        setups[name] = replace(setups[name], evaluation=replace(evaluation, benchmarks=others))
    return replace(study, experiment=replace(study.experiment, setups=setups)) if awaited else study


def notes(study: Study, chosen: list[Selected]) -> list[str]:
    """Notes that a reader of the table needs: missing units and samples, spread, small benchmarks."""
    found = []
    missing = len(missing_units(study))
    if missing:
        found.append(f"partial: {len(study.units) - missing} of {len(study.units)} units done")
    spreads: dict[str, list[str]] = {}  # of each setup
    small: dict[str, None] = {}
    for selected in chosen:
        best, method = selected.best, method_label(selected.best.method)
        if not best.complete:
            early = "selected before any checkpoint has the samples asked for"
            found.append(f"{selected.setup} {method}: {early}")
        if best.spread is not None:
            spread = f"{method} {best.spread * PERCENT:.1f} ({best.seeds} seeds)"
            spreads.setdefault(selected.setup, []).append(spread)
        runs = study.experiment.setups[selected.setup].evaluation.benchmarks
        for key, counts in best.counts.items():
            problems = len(counts[0].n)
            if problems < FEW_PROBLEMS:
                count = f"{problems} problem{'' if problems == 1 else 's'}"
                note = f"{benchmark_label(key, runs[key])}: {count}, so its intervals are wide"
                small[note] = None
    for setup, of_methods in spreads.items():
        found.append(f"{setup}: standard deviation of Avg: {', '.join(of_methods)}")
    return [*found, *small]


def base_scores(study: Study) -> dict[str, float]:
    """Mean pass@1 of each setup's untrained student."""
    scores = {}
    for unit in study.units:
        if unit.is_untrained:
            ids = list(study.evaluation_ids(unit.setup).values())
            score = selection.mean_score(study.reader(unit), ids, 0)
            if score is not None:
                scores[unit.setup] = score
    return scores
