"""Run directories → the results table. Reads, never writes."""

from __future__ import annotations

from analysis.labels import BASE, benchmark_label, method_label, setup_title
from analysis.scores.assess import assess, exact_scores
from analysis.scores.candidates import Candidate, Selected, select
from analysis.scores.verdict import verdict
from analysis.table.model import Score, Table, make_table
from orchestrator.monitor import status
from orchestrator.selection import scores as selection
from orchestrator.selection.study import Study

__all__ = ["Candidate", "Selected", "base_scores", "results_table", "select"]

PERCENT = 100


def results_table(study: Study) -> Table:
    """The paper's table of what has been evaluated so far, with what it rests on; notes say what is missing.

    UserError where two selected checkpoints of a setup were evaluated on different problems.
    """
    study = study.snapshot()
    chosen = select(study)
    by_family = {(s.setup, s.best.method): exact_scores(s.best) for s in chosen}
    families = [BASE, *study.experiment.methods]
    titles = {name: setup_title(name, study.experiment.setups) for name in study.experiment.setups}
    scores, labels = [], {}
    for name, setup in study.experiment.setups.items():
        for key, run in setup.evaluation.benchmarks.items():
            labels[name, key] = benchmark_label(key, run)
        # Every method of the experiment has its row, with empty cells before its first scores.
        for family in families:
            known = by_family.get((name, family), {})
            scores += [Score(family, name, key, known.get(key)) for key in setup.evaluation.benchmarks]
    evidence = assess(study, chosen)
    remarks = notes(study, chosen)
    study.remember()
    return make_table(scores, remarks, evidence, titles, labels, verdict(study.experiment, evidence))


def notes(study: Study, chosen: list[Selected]) -> list[str]:
    """What a reader of the table must know of the sweep."""
    missing = len(status.missing_units(study))
    partial = [f"partial: {len(study.units) - missing} of {len(study.units)} units done"] if missing else []
    unsampled, spreads = [], []
    for selected in chosen:
        best, name = selected.best, f"{selected.setup} {method_label(selected.best.method)}"
        if not best.complete:
            unsampled.append(f"{name}: selected before any checkpoint has the samples asked for")
        if best.spread is not None:
            spreads.append(f"{name}: {best.seeds} seeds, standard deviation of Avg {best.spread * PERCENT:.1f}")
    return [*partial, *unsampled, *spreads]


def base_scores(study: Study) -> dict[str, float]:
    """Mean pass@1 of each setup's untrained student."""
    scores = {}
    for unit in study.units:
        if not unit.is_untrained:
            continue
        ids = list(study.evaluation_ids(unit.setup).values())
        score = selection.mean_score(study.reader(unit), ids, 0)
        if score is not None:
            scores[unit.setup] = score
    return scores
