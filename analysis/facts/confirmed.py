"""Scores of confirmed checkpoints, over runs that took no part in choosing, tested by vanilla's."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.facts.assess import (
    estimates,
    exact_scores,
    replicate_scores,
    seed_spreads,
    to_reference,
)
from analysis.facts.candidates import Candidate, Selected, read_counts
from analysis.facts.evidence import ConfirmedColumn, ConfirmedRow
from analysis.labels import AVERAGE
from orchestrator.selection.confirmation import Confirmation, confirmations, evaluated_units, level
from orchestrator.selection.scores import PASS_AT_1, Metric
from orchestrator.selection.study import Study


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
