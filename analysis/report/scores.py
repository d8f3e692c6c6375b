"""The section `results`: the table, and the evidence behind its averages."""

from __future__ import annotations

from analysis.facts.evidence import RowEvidence
from analysis.labels import AVERAGE, method_label
from analysis.numbers import tenths_text
from analysis.report.html import Html, bullets, element, note, paragraph, section, table
from analysis.report.texts import limits
from analysis.table.captions import explanation
from analysis.table.evidence_formats import (
    GAP,
    LEFT_OUT,
    METHOD,
    OF,
    SEEDS,
    SETTING,
    SPLIT_HALF,
    STEP,
    TITLES,
    P,
    blocks,
    by_setup,
    gap_text,
    limits_text,
    number_text,
    sheet_of,
    tested_text,
)  # fmt: skip
from analysis.table.model import Table

MARKS = "Bold: best of the column; underlined: second. The untrained student is not ranked."
CAPTION = "pass@1 (%), ± the reach of its 95 % interval, * over problems of one training run"


def scores_section(results: Table) -> Html:
    """The tables of each setup, the explanation and the notes."""
    parts, found = [], blocks(results.facts)
    for setup in dict.fromkeys(column.setup for column in results.columns):
        parts.append(element("h3", results.title(setup)))
        parts.append(table(CAPTION, results.only(setup).sheet()))
        parts.append(_evidence(results, setup))
        for block in found:
            if block.kind in ("confirmed", "cost") and block.setup == setup:
                parts.append(table(f"{TITLES[block.kind]}, Avg (%)", block.sheet))
    for block in found:
        if block.kind == "across":
            parts.append(element("h3", "All setups"))
            parts.append(table(f"{TITLES[block.kind]}, Avg (%)", block.sheet))
    if results.facts:
        parts.append(note(" ".join(explanation(results.facts))))
    return section("Results", "results", *parts, note(MARKS), bullets(results.notes))


def _evidence(results: Table, setup: str) -> Html:
    """The selected checkpoints, and how much selection and chance may have added to them."""
    selected = by_setup(results.facts.rows).get(setup) if results.facts else None
    if not selected:
        return paragraph("No checkpoint has been evaluated on all benchmarks yet.")
    rows = list(map(_evidence_cells, selected))
    # With one seed for each method no row has a p-value, so that column may be left out.
    sheet = sheet_of(rows, always=rows[0].keys() - {P})
    return table("Selected checkpoints, Avg (%)", sheet)


def _evidence_cells(row: RowEvidence) -> dict[str, str]:
    """The difference stands beside the score, where a narrow screen still shows it."""
    column = row.columns[AVERAGE]
    fresh, gap = column.fresh, column.difference
    of = str(row.candidates)
    return {
        METHOD: method_label(row.method),
        "Score": tenths_text(column.score.value),
        GAP: gap_text(gap) if gap else "",
        "its 95 % interval": limits_text(gap) if gap else "",
        P: tested_text(gap) if gap else "",
        SEEDS: str(row.seeds) if row.seeds else "",
        OF: of if row.eligible == row.candidates else f"{of}, {row.eligible} eligible",
        SPLIT_HALF: number_text(column.split_half),
        LEFT_OUT: number_text(column.left_out),
        "Fresh samples": f"{tenths_text(fresh.value)} {limits(fresh)}" if fresh else "",
        STEP: str(row.step),
        SETTING: row.setting or "no knobs",
        "Score's 95 % interval": limits(column.score),
    }
