"""The section on what pass@1 hides: responses of the selected checkpoints, by benchmark."""

from __future__ import annotations

from analysis.report.html import Html, element, join, paragraph, section, table
from analysis.table.captions import responses_sentences
from analysis.table.evidence_formats import METHOD, by_setup, response_cells, sheet_of
from analysis.table.model import Table

BENCHMARK = "Benchmark"
INTERVALS = "±: the reach of a 95 % interval as under Results, * over problems of one training run."


def responses_section(results: Table) -> Html:
    """A table for each setup with a row for each method and benchmark."""
    groups = by_setup(results.evidence.rows) if results.evidence else {}
    if not results.evidence or not groups:
        text = "No checkpoint has been evaluated on all benchmarks yet."
        return section("What pass@1 hides", "responses", paragraph(text))
    parts = []
    for setup, rows in groups.items():
        cells = []
        for row in rows:
            for column in results.only(setup).columns:
                numbers = response_cells(row, column.benchmark)
                cells.append({METHOD: numbers.pop(METHOD), BENCHMARK: column.label} | numbers)
        sheet = sheet_of(cells)
        texts = [[cell.text for cell in row] for row in sheet.rows]
        shown = table(
            "Responses of the selected checkpoints", sheet.headings, texts, texts=(BENCHMARK,)
        )
        parts.append(join([element("h3", results.title(setup)), shown]))
    note = " ".join([INTERVALS, *responses_sentences(results.evidence)])
    return section("What pass@1 hides", "responses", *parts, paragraph(note, class_="note"))
