"""The results table on a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.evidence import Evidence, RowEvidence
from analysis.evidence_formats import EXPLANATION, HEADINGS, LEFT, by_setup, text_cells
from analysis.table import Cell, Column, Row, Table, tenths_text

STYLES = {"best": "bold", "second": "underline", None: ""}
WIDTH = 100
GAP = 2
LEAST_WIDTH = {"Method": 12, "Setting": 9}
LONGEST_LABEL = 30  # longer labels of methods take a second line where space is short
SPREAD_CELL = "44.4 ±1.2"


def to_rich(table: Table) -> Any:
    """A rich table for each setup: best bold, second underlined, an empty cell where a number is missing.

    The reach of the intervals stands dimmed beside the scores where that fits. Then what the averages rest on, and
    the notes.
    """
    from rich.console import Group
    from rich.text import Text

    setups = list(dict.fromkeys(column.setup for column in table.columns))
    titles = {setup: f"\n{table.title(setup)}" if len(setups) > 1 else "" for setup in setups}
    parts = [part for setup in setups for part in (Text(titles[setup], "bold"), _scores(table, setup))]
    if table.evidence and table.evidence.rows:
        for setup, rows in by_setup(table.evidence):
            parts += [Text(titles[setup], "bold"), _evidence(rows)]
        parts += [Text(), Text(EXPLANATION, "dim")]
    notes = [Text(), *map(Text, table.notes)] if table.notes else []
    return Group(*parts, *notes)


def _scores(table: Table, setup: str) -> Any:
    chosen = [(index, column) for index, column in enumerate(table.columns) if column.setup == setup]
    known = table.evidence if _width(table.rows, [column for _, column in chosen]) <= WIDTH else None
    shown = _new_table()
    shown.add_column("Method")
    for _, column in chosen:
        shown.add_column(column.label, justify="right", no_wrap=True)
    for row in table.rows:
        shown.add_row(row.label, *(_cell(row.cells[index], _spread(known, row, column)) for index, column in chosen))
    return shown


def _evidence(rows: Sequence[RowEvidence]) -> Any:
    shown = _new_table()
    for heading in HEADINGS:
        broken = heading.replace("-", "-\n")
        if heading in LEFT:  # on narrow terminals names and knobs take several lines
            shown.add_column(broken, overflow="fold", min_width=LEAST_WIDTH[heading])
        else:
            shown.add_column(broken, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(*text_cells(row))
    return shown


def _new_table() -> Any:
    from rich import box
    from rich.table import Table as RichTable

    return RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))


def _spread(evidence: Evidence | None, row: Row, column: Column) -> str:
    """` ±2.9`, or nothing where the interval is unknown."""
    known = evidence.find(column.setup, row.method) if evidence else None
    return f" ±{tenths_text(known.columns[column.benchmark].score.margin)}" if known else ""


def _cell(cell: Cell, spread: str) -> Any:
    from rich.text import Text

    return Text.assemble((cell.text, STYLES[cell.mark]), (spread, "dim"))


def _width(rows: Sequence[Row], columns: Sequence[Column]) -> int:
    """Width of the scores with the reach of their intervals beside them."""
    label = min(LONGEST_LABEL, max((len(row.label) for row in rows), default=0))
    return label + sum(GAP + max(len(SPREAD_CELL), len(column.label)) for column in columns)
