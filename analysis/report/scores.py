"""The results table, and what its averages rest on."""

from __future__ import annotations

from analysis.labels import AVERAGE, method_label
from analysis.numbers import tenths_text
from analysis.report.html import Html, bullets, element, join, paragraph, section, table
from analysis.report.texts import limits
from analysis.scores.evidence import RowEvidence
from analysis.table.captions import explanation
from analysis.table.evidence_formats import (
    SETTING,
    TITLES,
    blocks,
    by_setup,
    gap_text,
    limits_text,
    tested_text,
)
from analysis.table.model import Table
from orchestrator.sheet import Cell

# The difference stands beside the score, where a narrow screen still shows it.
HEADINGS = (
    *("Method", "Score", "− Vanilla", "its 95 % interval", "p", "Seeds", "Of"),
    *("Split-half", "Left-out", "Fresh samples", "Step", "Setting", "Score's 95 % interval"),
)
ELEMENTS = {"best": "b", "second": "u"}  # by the mark of a cell
MARKS = "Bold: best of the column; underlined: second. The untrained student is not ranked."


def scores_section(results: Table) -> Html:
    """Two tables for each setup, the explanation and the notes."""
    parts = []
    for setup in dict.fromkeys(column.setup for column in results.columns):
        tables = [_scores(results, setup), _rest(results, setup), _further(results, setup)]
        parts.append(join([element("h3", results.title(setup)), *tables]))
    notes = [*([" ".join(explanation(results.evidence))] if results.evidence else []), MARKS]
    return section(
        "Results",
        "results",
        *parts,
        *(paragraph(note, class_="note") for note in notes),
        bullets(results.notes),
    )


def _scores(results: Table, setup: str) -> Html:
    sheet = results.only(setup).sheet()
    rows = [[_cell(cell) for cell in row] for row in sheet.rows]
    caption = "pass@1 (%), ± the reach of its 95 % interval, * over problems of one training run"
    return table(caption, sheet.headings, rows)


def _cell(cell: Cell) -> str:
    shown = element(ELEMENTS[cell.mark], cell.text) if cell.mark in ELEMENTS else cell.text
    return join(
        [shown, element("small", f" ±{cell.reach}") if cell.text and cell.reach else Html()]
    )


def _rest(results: Table, setup: str) -> Html:
    """The selected checkpoints with what selecting and chance may have added to them."""
    groups = by_setup(results.evidence.rows) if results.evidence else {}
    rows = [dict(zip(HEADINGS, _evidence_row(row), strict=True)) for row in groups.get(setup, [])]
    if not rows:
        return paragraph("No checkpoint has been evaluated on all benchmarks yet.")
    # With one seed each nothing has a p-value, and the column would be empty.
    shown = [name for name in HEADINGS if name != "p" or any(row["p"] for row in rows)]
    cells = [[row[name] for name in shown] for row in rows]
    return table("Selected checkpoints, Avg (%)", shown, cells, texts=("Setting",))


def _further(results: Table, setup: str) -> Html:
    """The confirmed checkpoints, and the scores at equal cost; nothing without any."""
    found = []
    for block in blocks(results.evidence):
        if block.kind in ("confirmed", "cost") and block.setup == setup:
            rows = [[cell.text for cell in row] for row in block.sheet.rows]
            found.append(
                table(
                    f"{TITLES[block.kind]}, Avg (%)", block.sheet.headings, rows, texts=(SETTING,)
                )
            )
    return join(found)


def _evidence_row(row: RowEvidence) -> list[str]:
    column = row.columns[AVERAGE]
    fresh, gap = column.fresh, column.difference
    return [
        method_label(row.method),
        tenths_text(column.score.value),
        gap_text(gap) if gap else "",
        limits_text(gap) if gap else "",
        tested_text(gap) if gap else "",
        str(row.seeds) if row.seeds else "",
        _pool(row),
        "" if column.split_half is None else tenths_text(column.split_half),
        "" if column.left_out is None else tenths_text(column.left_out),
        f"{tenths_text(fresh.value)} {limits(fresh)}" if fresh else "",
        str(row.step),
        row.setting or "no knobs",
        limits(column.score),
    ]


def _pool(row: RowEvidence) -> str:
    """Scored checkpoints, and how many of them had the samples to be chosen from, where not all
    had.
    """
    text = str(row.candidates)
    return text if row.eligible == row.candidates else f"{text}, {row.eligible} eligible"
