"""The one door: `facts` computes everything that is said about the scores of a study, once.

Tables in all their forms, the report, figures, trackers and packs render it and compute nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from analysis.facts.assess import across_setups, assess, confirmed_rows, exact_scores
from analysis.facts.candidates import Selected, read_counts, select
from analysis.facts.costs import cost_rows
from analysis.facts.evidence import Depth, Facts
from analysis.facts.held_out import held_out_rows
from analysis.facts.responses import with_responses
from analysis.facts.verdict import verdict
from analysis.labels import benchmark_label, method_label
from orchestrator.errors import refuse
from orchestrator.monitor import status
from orchestrator.selection.confirmation import level, missing_units, with_confirmation
from orchestrator.selection.scores import PASS_AT_1, Metric
from orchestrator.selection.study import Study

PERCENT = 100
FEW_PROBLEMS = 30  # the smallest of the paper's benchmarks has as many


def facts(
    study: Study,
    metric: Metric = PASS_AT_1,
    cost: str = "updates",
    depth: Depth = "all",
    overview: status.Overview | None = None,
) -> Facts:
    """The facts of a study so far; notes say what is missing.

    A benchmark that was added to finished trials leaves the columns of the others as they are.
    Their rows are selected without it, and averages, evidence and verdict wait until it is
    evaluated. Checkpoints are selected by pass@1, whatever the `metric` is. `cost` is the measure
    of `evidence.MEASURES` at which methods are compared, too. A look that goes on can do with less
    `depth`: "scores" has no evidence and no notes, "intervals" lacks the comparison at equal cost
    and the numbers of the responses, which take most of the time. An `overview` that the caller
    has already is not made again. UserError where two selected checkpoints of a setup were
    evaluated on different problems, or where a problem has fewer than k samples.
    """
    study = with_confirmation(study.snapshot())
    awaited = _awaited(study)
    selected = select(_without(study, awaited))
    chosen: list[Selected] = []
    scores: dict[tuple[str, str], dict[str, Fraction]] = {}
    for each in selected:
        rescored = _rescored(study, each, metric)
        if rescored is not None:
            chosen.append(rescored)
            scores[each.setup, each.best.method] = exact_scores(rescored.best)
    found = Facts(study, metric, depth, tuple(selected), scores, overview=overview)
    if depth == "scores":
        return found
    found = assess(found, [] if awaited else chosen)
    if not awaited:
        confirmed = tuple(confirmed_rows(study, chosen, metric))
        across = across_setups(confirmed, study.experiment.setups, level(study.experiment))
        found = replace(found, confirmed=confirmed, across=across)
    if not awaited and depth == "all":
        costs = tuple(cost_rows(study, chosen, cost))
        measured = tuple(held_out_rows(study, chosen))
        found = replace(with_responses(study, found, chosen), costs=costs, held_out=measured)
    if depth == "all" and overview is None:
        found = replace(found, overview=status.overview(study))
    remarks = [] if metric == PASS_AT_1 else _about(metric, study, selected, chosen)
    for setup, key in awaited:
        label = benchmark_label(key, study.experiment.setups[setup].evaluation.benchmarks[key])
        until_then = "rows are selected on the other columns until then"
        remarks.append(f"waiting for {label}: {until_then}")
    missing = len(missing_units(study))
    if missing:
        remarks.append(f"partial: {len(study.units) - missing} of {len(study.units)} units done")
    remarks += notes(study, [] if awaited else chosen)
    study.remember()
    return replace(found, missing=missing, notes=tuple(remarks), verdict=verdict(found))


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
        trained = all(map(study.is_trained, itertools.chain(*family)))
        if not family[0][0].is_trial or not trained:
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
    """Notes that a reader of the table needs: missing samples, spread, small benchmarks."""
    found = []
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
