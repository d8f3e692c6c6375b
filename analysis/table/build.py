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
    scores = [
        Score(family, name, benchmark, by_family.get((name, family), {}).get(benchmark))
        for name, setup in study.experiment.setups.items()
        for family in families
        for benchmark in setup.evaluation.benchmarks
    ]
    labels = {
        (name, key): benchmark_label(key, run)
        for name, setup in study.experiment.setups.items()
        for key, run in setup.evaluation.benchmarks.items()
    }
    evidence = assess(study, chosen)
    said = verdict(study.experiment, evidence)
    remarks = notes(study, chosen)
    study.remember()
    return make_table(scores, remarks, evidence, titles, labels, said)


def notes(study: Study, chosen: list[Selected]) -> list[str]:
    """What a reader of the table must know of the sweep."""
    missing = len(status.missing_units(study))
    lines = [f"partial: {len(study.units) - missing} of {len(study.units)} units done"] if missing else []
    lines += [
        f"{s.setup} {method_label(s.best.method)}: selected before any checkpoint has the samples asked for"
        for s in chosen
        if not s.best.complete
    ]
    return lines + [
        f"{s.setup} {method_label(s.best.method)}: {s.best.seeds} seeds, "
        f"standard deviation of Avg {s.best.spread * PERCENT:.1f}"
        for s in chosen
        if s.best.spread is not None
    ]


def base_scores(study: Study) -> dict[str, float]:
    """Mean pass@1 of each setup's untrained student."""
    found = {}
    for unit in study.units:
        if not unit.is_untrained:
            continue
        ids = list(study.evaluation_ids(unit.setup).values())
        score = selection.mean_score(study.reader(unit), ids, 0)
        if score is not None:
            found[unit.setup] = score
    return found
