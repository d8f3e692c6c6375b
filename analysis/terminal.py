"""The results table on a terminal."""

from __future__ import annotations

from typing import Any

from analysis.table import Cell, Table

STYLES = {"best": "bold", "second": "underline", None: ""}


def to_rich(table: Table) -> Any:
    """A rich table: best bold, second underlined, an empty cell where a number is missing."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(
        box=box.SIMPLE_HEAD, pad_edge=False, caption="\n".join(table.notes) or None, caption_justify="left"
    )
    shown.add_column("Method")
    setups = {column.setup for column in table.columns}
    for column in table.columns:
        heading = f"{column.setup}\n{column.label}" if len(setups) > 1 else column.label
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in table.rows:
        shown.add_row(row.label, *(_cell(cell, Text) for cell in row.cells))
    return shown


def _cell(cell: Cell, text: Any) -> Any:
    return text(cell.text, style=STYLES[cell.mark])
