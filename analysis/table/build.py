"""Run directories → the results table. Reads, never writes."""

from __future__ import annotations

from pathlib import Path

from analysis.labels import BASE, benchmark_label, method_label, setup_title
from analysis.scores.assess import assess, exact_scores
from analysis.scores.candidates import Candidate, Selected, select
from analysis.scores.verdict import verdict
from analysis.table.model import Score, Table, make_table
from orchestrator.config import Experiment
from orchestrator.experiment import evaluations
from orchestrator.experiment.units import Unit
from orchestrator.monitor import status
from orchestrator.records.rundir import RunReader
from orchestrator.selection import scores as selection

__all__ = ["Candidate", "Selected", "base_scores", "results_table", "select"]

PERCENT = 100


def results_table(experiment: Experiment, units: list[Unit], runs: Path) -> Table:
    """The paper's table of what has been evaluated so far, with what it rests on; notes say what is missing.

    UserError where two selected checkpoints of a setup were evaluated on different problems.
    """
    chosen = select(experiment, units, runs)
    by_family = {(s.setup, s.best.method): exact_scores(s.best) for s in chosen}
    families = [BASE, *experiment.methods]
    titles = {name: setup_title(name, experiment.setups) for name in experiment.setups}
    scores = [
        Score(family, name, benchmark, by_family.get((name, family), {}).get(benchmark))
        for name, setup in experiment.setups.items()
        for family in families
        for benchmark in setup.evaluation.benchmarks
    ]
    labels = {
        (name, key): benchmark_label(key, run)
        for name, setup in experiment.setups.items()
        for key, run in setup.evaluation.benchmarks.items()
    }
    evidence = assess(experiment, chosen, runs)
    said = verdict(experiment, evidence)
    return make_table(scores, notes(experiment, units, runs, chosen), evidence, titles, labels, said)


def notes(experiment: Experiment, units: list[Unit], runs: Path, chosen: list[Selected]) -> list[str]:
    """What a reader of the table must know of the sweep."""
    missing = len(status.missing_units(experiment, units, runs))
    lines = [f"partial: {len(units) - missing} of {len(units)} units done"] if missing else []
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


def base_scores(experiment: Experiment, units: list[Unit], runs: Path) -> dict[str, float]:
    """Mean pass@1 of each setup's untrained student."""
    found = {}
    for unit in (unit for unit in units if unit.kind == "base_eval"):
        ids = list(evaluations.evaluation_ids(experiment.setups[unit.setup]).values())
        score = selection.mean_score(RunReader(runs, unit.id), ids, 0)
        if score is not None:
            found[unit.setup] = score
    return found
