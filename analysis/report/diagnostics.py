"""Logged quantities of the selected runs in two tables: the mean over the warmup, and the last
step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from analysis.figures import curves
from analysis.figures.curves import ScoredSetting, Series
from analysis.labels import method_label, order_methods, setup_title
from analysis.report.html import Html, element, join, paragraph, section, table
from analysis.report.texts import decimal
from analysis.scores.candidates import Selected
from orchestrator.experiment.methods import METHODS
from orchestrator.records.columns import COLUMNS, Column
from orchestrator.selection.study import Study

QUANTITIES: Mapping[str, Column] = {
    key: column for key, column in COLUMNS.items() if column.heading
}
LEGEND = (
    "Means over seeds. β*: blending weight at the budget; Teacher inside: prefixes where the teacher itself lies "
    "within the budget; KL: realised divergence from the student, per token; Acceptance: expected share of the "
    "student's drafts that stand; Passes: teacher passes while decoding; M, Q: probability of student and teacher on "
    "the student's top-k support; Overlap: share of that support in the teacher's own top k. – where a method does not "
    "have the quantity: all up to Replaced need a teacher that takes part in decoding, which ends with a warmup."
)


def diagnostics_section(study: Study, chosen: Sequence[Selected]) -> Html:
    """Two tables for each setup."""
    parts = [_setup(study, chosen, name) for name in study.experiment.setups]
    return section(
        "Diagnostics of the selected runs", "diagnostics", *parts, paragraph(LEGEND, class_="note")
    )


def _setup(study: Study, chosen: Sequence[Selected], name: str) -> Html:
    settings = curves.read_settings(study, name)
    best = curves.best_settings(
        settings, [selected for selected in chosen if selected.setup == name]
    )
    logged: dict[str, dict[str, Series]] = {}
    for method in order_methods(best):
        columns = curves.metric_series(study, best[method], list(QUANTITIES))
        if columns:
            logged[method] = columns
    heading = element("h3", setup_title(name, study.experiment.setups))
    if not logged:
        return join([heading, paragraph("No step of a chosen run has been logged yet.")])
    tables = [_table("Last step", {method: last_step(series) for method, series in logged.items()})]
    steps = warmup(best)
    if steps is not None:
        early = {method: early_mean(series, steps) for method, series in logged.items()}
        tables.insert(0, _table(f"Mean over the first {steps} steps", early))
    return join([heading, *tables])


def warmup(best: Mapping[str, ScoredSetting]) -> int | None:
    """The steps that all runs are averaged over: those of the first chosen method that fades, in
    the table's order.
    """
    chosen = [best[method] for method in METHODS if method in best]
    return next((setting.warmup for setting in chosen if setting.warmup is not None), None)


def early_mean(logged: Mapping[str, Series], steps: int) -> dict[str, float]:
    """Mean of each quantity over the values that a run's first steps have."""
    means = {}
    for key, series in logged.items():
        first = min(series.curve)
        values: list[float] = []
        for step, of_seeds in series.curve.items():
            if step < first + steps:
                values += of_seeds
        if values:
            means[key] = fmean(values)
    return means


def last_step(logged: Mapping[str, Series]) -> dict[str, float]:
    """The quantities that a run's last logged step has."""
    rows = {key: series.curve[max(series.curve)] for key, series in logged.items()}
    return {key: fmean(row) for key, row in rows.items() if row}


def _table(caption: str, rows: Mapping[str, Mapping[str, float]]) -> Html:
    headings = ["Method", *(column.heading for column in QUANTITIES.values())]
    return table(
        caption,
        headings,
        [[method_label(method), *_cells(values)] for method, values in rows.items()],
    )


def _cells(values: Mapping[str, float]) -> list[str]:
    cells = []
    for key, column in QUANTITIES.items():
        value = values.get(key)
        cells.append(decimal(None if value is None else column.factor * value, column.decimals))
    return cells
