"""A results table as Markdown, LaTeX (booktabs, laid out as in the paper), CSV and JSON."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from itertools import groupby

from analysis import evidence_formats
from analysis.evidence import Evidence
from analysis.labels import AVERAGE, BASE, TRUST_REGION, method_title
from analysis.table import CSV_COLUMNS, EVIDENCE_COLUMNS, Cell, Column, Mark, Row, Table, round_to_tenths

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
    """A GitHub table: setup titles over column names, best bold, second underlined; then what the averages rest on, a
    table for each setup; notes below.
    """
    # Markdown has a single heading row; it takes the titles, and the column names become the first row.
    titles = [
        name for setup, width in _setup_widths(table) for name in (_markdown(table.title(setup)), *[""] * (width - 1))
    ]
    labels = [_bold_average(column, _markdown(column.label), "**%s**") for column in table.columns]
    lines = [
        _markdown_line(["", *titles]),
        _markdown_line(["---", *["---:"] * len(table.columns)]),
        _markdown_line(["**Method**", *labels]),
        *(_markdown_row(row) for row in table.rows),
    ]
    lines += evidence_formats.markdown_blocks(table.evidence, table.title) if table.evidence else []
    return "\n".join(lines) + "\n" + "".join(f"\n{_markdown(note)}\n" for note in table.notes)


def to_latex(table: Table) -> str:
    """A booktabs tabular laid out as in the paper, after notes and evidence as comments; needs the package booktabs."""
    groups = [[row for row in table.rows if _latex_group(row) == group] for group in range(3)]
    labels = [_bold_average(column, _latex(column.label), r"\textbf{%s}") for column in table.columns]
    evidence = evidence_formats.comment_lines(table.evidence) if table.evidence else ()
    lines = [
        *(f"% {_one_line(note)}" for note in (*table.notes, *evidence)),
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
    such percentages for fractions. Where the evidence is known its columns follow, in the same unit with one decimal
    more. Notes have no place in this form.
    """
    cells = [(row.method, column, cell) for row in table.rows for column, cell in _pair_cells(table, row)]
    highest = max((round_to_tenths(cell.value) for _, _, cell in cells if cell.value is not None), default=0)
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS + EVIDENCE_COLUMNS if table.evidence else CSV_COLUMNS)
    fractions = 0 < highest <= 10
    for method, column, cell in cells:
        text = _fraction_text(cell) if fractions else cell.text
        known = _evidence_fields(table.evidence, method, column, 0.01 if fractions else 1) if table.evidence else ()
        writer.writerow((method, column.setup, column.benchmark, text, *known))
    return out.getvalue()


def to_json(table: Table) -> str:
    """Columns, rows, notes and evidence with sorted keys.

    A cell has `value` (percent before rounding, null if missing), `text` (one decimal, empty if missing) and
    `mark` ("best", "second" or null). `evidence` has an entry for each selected checkpoint, `benchmarks` one for each
    benchmark of a setup, `bootstrap` says how the intervals were made; empty and null for a table from a CSV file.
    """
    columns = [{"setup": c.setup, "benchmark": c.benchmark, "label": c.label} for c in table.columns]
    rows = [
        {
            "method": row.method,
            "label": row.label,
            "title": method_title(row.method),
            "cells": [_cell_object(cell) for cell in row.cells],
        }
        for row in table.rows
    ]
    document = {
        "columns": columns,
        "rows": rows,
        "notes": list(table.notes),
        **evidence_formats.to_object(table.evidence),
    }
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
        titles.append(rf"\multicolumn{{{width}}}{{c}}{{{_latex(table.title(setup))}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    return [_latex_line(titles).lstrip(), " ".join(rules)] if rules else []


def _latex_group(row: Row) -> int:
    """Rules part the method of the paper, its rivals, and the untrained student."""
    return {TRUST_REGION: 0, BASE: 2}.get(row.method, 1)


def _latex_row(row: Row) -> str:
    label = _latex(method_title(row.method))
    cells = [_mark_text(cell, _LATEX_MARKS) for cell in row.cells]
    return _latex_line([rf"\textbf{{{label}}}" if row.method == TRUST_REGION else rf"\quad {label}", *cells])


def _evidence_fields(evidence: Evidence, method: str, column: Column, scale: float) -> list[str]:
    return evidence_formats.csv_fields(evidence.find(column.setup, method), column.benchmark, scale)


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
