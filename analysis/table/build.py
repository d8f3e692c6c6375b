"""Run directories → the results table. Reads, never writes."""

from __future__ import annotations

from analysis.facts.evidence import Depth, Facts
from analysis.facts.facts import facts
from analysis.labels import BASE, benchmark_label, setup_title
from analysis.table.model import Score, Table, make_table
from orchestrator.selection.scores import PASS_AT_1, Metric
from orchestrator.selection.study import Study


def results_table(
    study: Study, metric: Metric = PASS_AT_1, cost: str = "updates", depth: Depth = "all"
) -> Table:
    """The paper's table so far, with what it rests on, as `facts` computes it."""
    return table_of(facts(study, metric, cost, depth))


def table_of(known: Facts) -> Table:
    """The paper's table; without evidence where the facts are scores only."""
    setups = known.experiment.setups
    scores, titles, labels = [], {}, {}
    for name, setup in setups.items():
        titles[name] = setup_title(name, setups)
        for key, run in setup.evaluation.benchmarks.items():
            labels[name, key] = benchmark_label(key, run)
        # Every method of the experiment has its row, with empty cells before its first scores.
        for family in [BASE, *known.experiment.methods]:
            of_family = known.scores.get((name, family), {})
            for key in setup.evaluation.benchmarks:
                scores.append(Score(family, name, key, of_family.get(key)))
    with_evidence = None if known.depth == "scores" else known
    return make_table(
        scores, known.notes, with_evidence, titles, labels, known.verdict, known.metric
    )
