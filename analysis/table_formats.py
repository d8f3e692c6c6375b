"""A results table as Markdown, LaTeX (booktabs, laid out as in the paper), CSV and JSON."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from itertools import groupby

from analysis.labels import AVERAGE, BASE, TRUST_REGION, setup_title
from analysis.table import CSV_COLUMNS, Cell, Column, Mark, Row, Table, round_to_tenths

_LATEX_MARKS: Mapping[Mark, str] = {"best": r"\textbf{%s}", "second": r"\underline{%s}"}
_MARKDOWN_MARKS: Mapping[Mark, str] = {"best": "**%s**", "second": "<u>%s</u>"}
_LATEX_ESCAPES = str.maketrans(
    {
        **{char: "\\" + char for char in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": "$<$",
        ">": "$>$",
        "|": "$|$",
        "←": r"$\leftarrow$",
        "→": r"$\rightarrow$",
        "ε": r"$\varepsilon$",
        "τ": r"$\tau$",
    }
)
_MARKDOWN_ESCAPES = str.maketrans({char: "\\" + char for char in "\\|*<`"})


def to_markdown(table: Table) -> str:
    """A GitHub table: setup titles over column names, best bold, second underlined, notes below."""
    # Markdown has a single heading row; it takes the titles, and the column names become the first row.
    titles = [
        name for setup, width in _setup_widths(table) for name in (_markdown(setup_title(setup)), *[""] * (width - 1))
    ]
    labels = [_bold_average(column, _markdown(column.label), "**%s**") for column in table.columns]
    lines = [
        _markdown_line(["", *titles]),
        _markdown_line(["---", *["---:"] * len(table.columns)]),
        _markdown_line(["**Method**", *labels]),
        *(_markdown_row(row) for row in table.rows),
    ]
    return "\n".join(lines) + "\n" + "".join(f"\n{_markdown(note)}\n" for note in table.notes)


def to_latex(table: Table) -> str:
    """A booktabs tabular laid out as in the paper, after the notes as comments; needs the package booktabs."""
    groups = [[row for row in table.rows if _latex_group(row) == group] for group in range(3)]
    labels = [_bold_average(column, _latex(column.label), r"\textbf{%s}") for column in table.columns]
    lines = [
        *(f"% {_one_line(note)}" for note in table.notes),
        rf"\begin{{tabular}}{{l{'|'.join('c' * width for _, width in _setup_widths(table))}}}",
        r"\toprule",
        *_latex_titles(table),
        _latex_line([r"\textbf{Method}", *labels]),
        *(line for group in groups if group for line in (r"\midrule", *map(_latex_row, group))),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """The long form that `read_results` takes: every cell, averages too, in percent with one decimal.

    Where no cell exceeds 1 percent the values are fractions with three decimals, since the reader would take
    such percentages for fractions. Notes have no place in this form.
    """
    cells = [(row.method, column, cell) for row in table.rows for column, cell in _pair_cells(table, row)]
    highest = max((round_to_tenths(cell.value) for _, _, cell in cells if cell.value is not None), default=0)
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for method, column, cell in cells:
        text = _fraction_text(cell) if 0 < highest <= 10 else cell.text
        writer.writerow((method, column.setup, column.benchmark, text))
    return out.getvalue()


def to_json(table: Table) -> str:
    """Columns, rows and notes with sorted keys.

    A cell has `value` (percent before rounding, null if missing), `text` (one decimal, empty if missing) and
    `mark` ("best", "second" or null).
    """
    columns = [{"setup": c.setup, "benchmark": c.benchmark, "label": c.label} for c in table.columns]
    rows = [
        {"method": row.method, "label": row.label, "cells": [_cell_object(cell) for cell in row.cells]}
        for row in table.rows
    ]
    document = {"columns": columns, "rows": rows, "notes": list(table.notes)}
    return json.dumps(document, ensure_ascii=False, indent=2, sort_keys=True) + "\n"


def _setup_widths(table: Table) -> list[tuple[str, int]]:
    """Each setup in column order with its number of columns."""
    return [(setup, len(list(group))) for setup, group in groupby(table.columns, key=lambda column: column.setup)]


def _pair_cells(table: Table, row: Row) -> list[tuple[Column, Cell]]:
    return list(zip(table.columns, row.cells, strict=True))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _bold_average(column: Column, label: str, bold: str) -> str:
    return bold % label if column.benchmark == AVERAGE else label


def _mark_text(cell: Cell, marks: Mapping[Mark, str]) -> str:
    return cell.text if cell.mark is None else marks[cell.mark] % cell.text


def _markdown(text: str) -> str:
    return _one_line(text).translate(_MARKDOWN_ESCAPES)


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_row(row: Row) -> str:
    label = _markdown(row.label)
    cells = [_mark_text(cell, _MARKDOWN_MARKS) for cell in row.cells]
    return _markdown_line([f"**{label}**" if row.method == TRUST_REGION else label, *cells])


def _latex(text: str) -> str:
    return _one_line(text).translate(_LATEX_ESCAPES)


def _latex_line(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def _latex_titles(table: Table) -> list[str]:
    """The line of setup titles and the rules under them; nothing for a table without columns."""
    titles, rules, start = [""], [], 2
    for setup, width in _setup_widths(table):
        titles.append(rf"\multicolumn{{{width}}}{{c}}{{{_latex(setup_title(setup))}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    return [_latex_line(titles).lstrip(), " ".join(rules)] if rules else []


def _latex_group(row: Row) -> int:
    """Rules part the method of the paper, its rivals, and the untrained student."""
    return {TRUST_REGION: 0, BASE: 2}.get(row.method, 1)


def _latex_row(row: Row) -> str:
    label = _latex(row.label)
    cells = [_mark_text(cell, _LATEX_MARKS) for cell in row.cells]
    return _latex_line([rf"\textbf{{{label}}}" if row.method == TRUST_REGION else rf"\quad {label}", *cells])


def _fraction_text(cell: Cell) -> str:
    """The rounded percentage, at most 1, as a fraction: 0.7 percent is 0.007."""
    return "" if cell.value is None else f"0.{round_to_tenths(cell.value):03d}"


def _cell_object(cell: Cell) -> dict[str, float | str | None]:
    value = None if cell.value is None else float(cell.value)
    return {"value": value, "text": cell.text, "mark": cell.mark}


FORMATS: Mapping[str, Callable[[Table], str]] = {
    "md": to_markdown,
    "tex": to_latex,
    "csv": to_csv,
    "json": to_json,
}
