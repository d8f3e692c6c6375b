"""Logged quantities of the selected runs: means over the warmup, and those of the last step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from analysis.facts import curves
from analysis.facts.candidates import Selected
from analysis.facts.curves import ScoredSetting, Series
from analysis.labels import method_label, order_methods, setup_title
from analysis.report.html import Html, element, note, paragraph, section, table
from analysis.report.texts import decimal
from orchestrator.experiment.methods import METHODS
from orchestrator.records.log import COLUMNS, Column
from orchestrator.selection.study import Study
from orchestrator.sheet import Sheet

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
    parts = []
    for setup in study.experiment.setups:
        title = setup_title(setup, study.experiment.setups)
        parts.append(element("h3", title))
        parts += _tables(study, curves.selected_settings(study, setup, chosen))
    return section("Diagnostics of the selected runs", "diagnostics", *parts, note(LEGEND))


def _tables(study: Study, best: Mapping[str, ScoredSetting]) -> list[Html]:
    steps = warmup(best)
    early: dict[str, dict[str, float]] = {}
    last: dict[str, dict[str, float]] = {}
    for method in order_methods(best):
        logged = curves.metric_series(study, best[method], list(QUANTITIES))
        if logged:
            last[method] = last_step(logged)
            early[method] = early_mean(logged, steps or 0)
    if not last:
        return [paragraph("No step of a chosen run has been logged yet.")]
    tables = [_table("Last step", last)]
    if steps is not None:
        tables.insert(0, _table(f"Mean over the first {steps} steps", early))
    return tables


def warmup(best: Mapping[str, ScoredSetting]) -> int | None:
    """The number of first steps over which the runs of all methods are averaged.

    It is the warmup of the first selected method that fades into vanilla, in the table's order.
    """
    for method in METHODS:
        if method in best and best[method].warmup is not None:
            return best[method].warmup
    return None


def early_mean(logged: Mapping[str, Series], steps: int) -> dict[str, float]:
    """Mean of each quantity over the values of the first `steps` of a setting's runs."""
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
    """Mean over seeds of each quantity that the last logged step has."""
    means = {}
    for key, series in logged.items():
        values = series.curve[max(series.curve)]
        if values:
            means[key] = fmean(values)
    return means


def _table(caption: str, means: Mapping[str, Mapping[str, float]]) -> Html:
    headings, rows = ["Method"], []
    for column in QUANTITIES.values():
        headings.append(column.heading)
    for method, values in means.items():
        row = [method_label(method)]
        for key, column in QUANTITIES.items():
            # A quantity that the method does not log stays missing.
            value = column.factor * values[key] if key in values else None
            row.append(decimal(value, column.decimals))
        rows.append(row)
    return table(caption, Sheet.of(headings, rows))
