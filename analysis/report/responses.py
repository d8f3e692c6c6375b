"""The section `responses`: other numbers of the responses behind pass@1, by benchmark."""

from __future__ import annotations

from dataclasses import replace

from analysis.report.html import Html, element, note, paragraph, section, table
from analysis.table.captions import responses_sentences
from analysis.table.evidence_formats import METHOD, TITLES, by_setup, response_cells, sheet_of
from analysis.table.model import Table

CAPTION = "Responses of the selected checkpoints"
INTERVALS = "±: the reach of a 95 % interval as under Results, * over problems of one training run."


def responses_section(results: Table) -> Html:
    """A table for each setup with a row for each method and benchmark."""
    parts = []
    for setup, rows in by_setup(results.facts.rows if results.facts else ()).items():
        cells = []
        for row in rows:
            for column in results.only(setup).columns:
                numbers = response_cells(row, column.benchmark)
                named = {METHOD: numbers.pop(METHOD), "Benchmark": column.label}
                cells.append(named | numbers)
        parts.append(element("h3", results.title(setup)))
        parts.append(table(CAPTION, replace(sheet_of(cells), left=(0, 1))))
    if results.facts and parts:
        parts.append(note(" ".join([INTERVALS, *responses_sentences(results.facts)])))
    else:
        parts = [paragraph("No checkpoint has been evaluated on all benchmarks yet.")]
    return section(TITLES["responses"], "responses", *parts)
