"""The results table, and the evidence behind its averages."""

from __future__ import annotations

from analysis.labels import AVERAGE, method_label
from analysis.numbers import tenths_text
from analysis.report.html import Html, bullets, element, note, paragraph, section, table
from analysis.report.texts import limits
from analysis.scores.evidence import RowEvidence
from analysis.table.captions import explanation
from analysis.table.evidence_formats import (
    TITLES,
    blocks,
    by_setup,
    gap_text,
    limits_text,
    tested_text,
)
from analysis.table.model import Table
from orchestrator.sheet import Sheet

# The difference stands beside the score, where a narrow screen still shows it.
HEADINGS = (
    *("Method", "Score", "− Vanilla", "its 95 % interval", "p", "Seeds", "Of"),
    *("Split-half", "Left-out", "Fresh samples", "Step", "Setting", "Score's 95 % interval"),
)
TESTED = HEADINGS.index("p")
MARKS = "Bold: best of the column; underlined: second. The untrained student is not ranked."
CAPTION = "pass@1 (%), ± the reach of its 95 % interval, * over problems of one training run"


def scores_section(results: Table) -> Html:
    """The tables of each setup, the explanation and the notes."""
    parts = []
    for setup in dict.fromkeys(column.setup for column in results.columns):
        parts.append(element("h3", results.title(setup)))
        parts.append(table(CAPTION, results.only(setup).sheet()))
        parts.append(_evidence(results, setup))
        for block in blocks(results.evidence):
            if block.kind != "selected" and block.setup == setup:
                parts.append(table(f"{TITLES[block.kind]}, Avg (%)", block.sheet))
    if results.evidence:
        parts.append(note(" ".join(explanation(results.evidence))))
    return section("Results", "results", *parts, note(MARKS), bullets(results.notes))


def _evidence(results: Table, setup: str) -> Html:
    """The selected checkpoints, and how much selection and chance may have added to them."""
    rows = by_setup(results.evidence.rows).get(setup) if results.evidence else None
    if not rows:
        return paragraph("No checkpoint has been evaluated on all benchmarks yet.")
    sheet = Sheet.of(HEADINGS, map(_evidence_row, rows), left=(0, HEADINGS.index("Setting")))
    if not any(row[TESTED].text for row in sheet.rows):
        # With one seed each nothing has a p-value, and the column would be empty.
        sheet = sheet.only([place for place in range(len(HEADINGS)) if place != TESTED])
    return table("Selected checkpoints, Avg (%)", sheet)


def _evidence_row(row: RowEvidence) -> list[str]:
    column = row.columns[AVERAGE]
    fresh, gap = column.fresh, column.difference
    pool = str(row.candidates)
    if row.eligible != row.candidates:
        pool += f", {row.eligible} eligible"
    return [
        method_label(row.method),
        tenths_text(column.score.value),
        gap_text(gap) if gap else "",
        limits_text(gap) if gap else "",
        tested_text(gap) if gap else "",
        str(row.seeds) if row.seeds else "",
        pool,
        "" if column.split_half is None else tenths_text(column.split_half),
        "" if column.left_out is None else tenths_text(column.left_out),
        f"{tenths_text(fresh.value)} {limits(fresh)}" if fresh else "",
        str(row.step),
        row.setting or "no knobs",
        limits(column.score),
    ]
