"""The paper's results table: from scores, or a CSV file of them, to Markdown, LaTeX, CSV and JSON.

Scores are exact fractions in percent (0 to 100) from input to the printed digit; binary floats appear only as
numbers in the JSON output. Layout and marks are those of the paper's main results table.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Literal, NoReturn

from analysis.labels import (
    AVERAGE,
    AVERAGE_LABEL,
    BASE,
    TRUST_REGION,
    benchmark_key,
    benchmark_label,
    method_key,
    method_label,
    order_methods,
    setup_key,
    setup_title,
)

CSV_COLUMNS = ("method", "setup", "benchmark", "pass_at_1")

Mark = Literal["best", "second"]

_Values = Mapping[tuple[str, str, str], Fraction | None]

# Bounded, so that no exponent in a file can ask for a number with millions of digits.
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,9}(?:\.[0-9]{0,60})?|\.[0-9]{1,60})(?:[eE][+-]?[0-9]{1,2})?")

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


@dataclass(frozen=True)
class Score:
    """pass@1 of one method on one benchmark, exact, in percent (0 to 100); None while it is missing.

    A score whose benchmark is `avg` overrides the computed mean of its method and setup.
    """

    method: str
    setup: str
    benchmark: str
    value: Fraction | None


@dataclass(frozen=True)
class Column:
    """One benchmark of one setup, or the setup's average (benchmark `avg`)."""

    setup: str
    benchmark: str
    label: str


@dataclass(frozen=True)
class Cell:
    """An exact value in percent, its text with one decimal (empty if missing), and its rank in the column."""

    value: Fraction | None
    text: str
    mark: Mark | None


@dataclass(frozen=True)
class Row:
    """One method; `cells` follow the table's columns."""

    method: str
    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Columns grouped by setup, the average first in each group; rows in the paper's order."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


# --- from scores to a table ---


def make_table(scores: Iterable[Score], notes: Iterable[str] = ()) -> Table:
    """Averages, rounds and ranks scores.

    Setups and benchmarks come in the order of their first score. The average is the unweighted mean over all
    benchmarks of the setup, and missing where one of them is. Raises ValueError for a score that is given twice
    or lies outside 0 to 100.
    """
    values = _index_scores(scores)
    columns = _make_columns(values)
    methods = order_methods(method for method, _, _ in values)
    by_column = [_make_cells(methods, [_look_up(values, method, column) for method in methods]) for column in columns]
    rows = (
        Row(method, method_label(method), tuple(cells[position] for cells in by_column))
        for position, method in enumerate(methods)
    )
    return Table(columns, tuple(rows), tuple(notes))


def round_to_tenths(value: Fraction) -> int:
    """Tenths of a non-negative value, the exact half rounded up: 0.05 gives 1."""
    return int(value * 10 + Fraction(1, 2))


def _index_scores(scores: Iterable[Score]) -> _Values:
    values: dict[tuple[str, str, str], Fraction | None] = {}
    for score in scores:
        key = (score.method, score.setup, score.benchmark)
        if key in values:
            raise ValueError(f"score of {', '.join(key)} is given twice; give it once")
        if score.value is not None and not 0 <= score.value <= 100:
            raise ValueError(f"score of {', '.join(key)} is {float(score.value)}; give percent from 0 to 100")
        values[key] = score.value
    return values


def _make_columns(values: _Values) -> tuple[Column, ...]:
    setups = dict.fromkeys(setup for _, setup, _ in values)
    return tuple(
        column
        for setup in setups
        for column in (Column(setup, AVERAGE, AVERAGE_LABEL), *_benchmark_columns(setup, _benchmarks(values, setup)))
    )


def _benchmarks(values: _Values, setup: str) -> list[str]:
    return list(dict.fromkeys(name for _, where, name in values if where == setup and name != AVERAGE))


def _benchmark_columns(setup: str, benchmarks: Sequence[str]) -> list[Column]:
    """Columns with the benchmarks' labels; benchmarks that have the same label keep their keys, to stay distinct."""
    uses = Counter(benchmark_label(key) for key in benchmarks)
    return [Column(setup, key, benchmark_label(key) if uses[benchmark_label(key)] == 1 else key) for key in benchmarks]


def _look_up(values: _Values, method: str, column: Column) -> Fraction | None:
    value = values.get((method, column.setup, column.benchmark))
    if value is None and column.benchmark == AVERAGE:
        return _mean([values.get((method, column.setup, name)) for name in _benchmarks(values, column.setup)])
    return value


def _mean(values: Sequence[Fraction | None]) -> Fraction | None:
    present = [value for value in values if value is not None]
    if not values or len(present) < len(values):
        return None
    return sum(present, Fraction(0)) / len(present)


def _make_cells(methods: Sequence[str], values: Sequence[Fraction | None]) -> list[Cell]:
    """The cells of one column. The untrained student is a reference, not a competitor, and is not ranked."""
    tenths = [None if value is None else round_to_tenths(value) for value in values]
    ranked = {n for n, method in zip(tenths, methods, strict=True) if n is not None and method != BASE}
    podium: tuple[Mark, Mark] = ("best", "second")
    marks = dict(zip(sorted(ranked, reverse=True), podium, strict=False))
    return [
        Cell(value, _tenths_text(n), None if n is None or method == BASE else marks.get(n))
        for method, value, n in zip(methods, values, tenths, strict=True)
    ]


def _tenths_text(tenths: int | None) -> str:
    return "" if tenths is None else f"{tenths // 10}.{tenths % 10}"


# --- from a CSV file to scores ---


def read_results(path: str | Path) -> list[Score]:
    """Scores of a UTF-8 CSV file with the columns method, setup, benchmark, pass_at_1, in any order.

    Names are keys or labels. An empty value is a missing score. If any value exceeds 1 the whole file is in
    percent, else in fractions; either way the scores are returned in percent. Raises ValueError, one line that
    names the file, the line, the column, the value and what would be right.
    """
    (line, header), *records = _read_records(path)
    _check_header(f"{path}:{line}", header)
    if not records:
        _fail(f"{path}:{line}", "no rows follow the header; add one row per method, setup and benchmark")
    scores = [_parse_record(f"{path}:{line}", header, record) for line, record in records]
    _reject_duplicates(path, [line for line, _ in records], scores)
    scale = 1 if any(score.value is not None and score.value > 1 for score in scores) else 100
    return [
        Score(score.method, score.setup, score.benchmark, None if score.value is None else score.value * scale)
        for score in scores
    ]


def _fail(where: str, problem: str) -> NoReturn:
    raise ValueError(f"{where}: {problem}")


def _read_records(path: str | Path) -> list[tuple[int, list[str]]]:
    """The header and the rows that are not blank, each with its line number; at least one."""
    try:
        # utf-8-sig: spreadsheets put a byte order mark before the first column's name.
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            records = [(reader.line_num, [" ".join(field.split()) for field in record]) for record in reader]
    except OSError as error:
        _fail(str(path), f"cannot be read ({error.strerror}); give a CSV file with header {','.join(CSV_COLUMNS)}")
    except UnicodeDecodeError:
        _fail(str(path), "is not UTF-8 text; save it as a UTF-8 CSV file")
    except csv.Error as error:
        _fail(str(path), f"is not a CSV file ({error}); separate with commas and close every quote")
    filled = [(line, record) for line, record in records if any(record)]
    if not filled:
        _fail(str(path), f"is empty; line 1 must be {','.join(CSV_COLUMNS)}")
    return filled


def _check_header(where: str, header: Sequence[str]) -> None:
    wanted = f"the header must be {','.join(CSV_COLUMNS)}"
    for column in CSV_COLUMNS:
        if column not in header:
            _fail(where, f"column {column} is missing from {','.join(header)!r}; {wanted}")
    for column in header:
        if column not in CSV_COLUMNS:
            _fail(where, f"column {column!r} is unknown; {wanted}")
        if header.count(column) > 1:
            _fail(where, f"column {column} appears {header.count(column)} times; {wanted}")


def _parse_record(where: str, header: Sequence[str], record: Sequence[str]) -> Score:
    """A score in the unit of the file."""
    if len(record) != len(header):
        _fail(where, f"{len(record)} values in {','.join(record)!r}; give {len(header)}, for {','.join(header)}")
    fields = dict(zip(header, record, strict=True))
    for column in ("method", "setup", "benchmark"):
        if not fields[column]:
            _fail(where, f"column {column}: '' is no name; give the {column}'s key or label")
    return Score(
        method_key(fields["method"]),
        setup_key(fields["setup"]),
        benchmark_key(fields["benchmark"]),
        _parse_value(f"{where}: column pass_at_1", fields["pass_at_1"]),
    )


def _parse_value(where: str, text: str) -> Fraction | None:
    if not text:
        return None
    if not _NUMBER.fullmatch(text):
        _fail(where, f"{text!r} is not a number; write one such as 69.7 or 0.697, or nothing if it is missing")
    value = Fraction(text)
    if not 0 <= value <= 100:
        _fail(where, f"{text!r} is out of range; write percent from 0 to 100 or a fraction from 0 to 1")
    return value


def _reject_duplicates(path: str | Path, lines: Sequence[int], scores: Sequence[Score]) -> None:
    first: dict[tuple[str, str, str], int] = {}
    for line, score in zip(lines, scores, strict=True):
        key = (score.method, score.setup, score.benchmark)
        if key in first:
            row = f"columns method,setup,benchmark: {','.join(key)!r}"
            _fail(f"{path}:{line}", f"{row} is already on line {first[key]}; keep one of the two")
        first[key] = line


# --- from a table to text ---


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
