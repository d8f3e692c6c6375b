"""The paper's results table, from scores or from a CSV file of them; `formats` writes it out.

Scores are exact fractions in percent (0 to 100) from input to the printed digit; binary floats
appear only as numbers in the JSON output. Layout and marks are those of the paper's main results
table.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import NoReturn

from analysis.facts.evidence import Facts, Verdict
from analysis.labels import (
    AVERAGE,
    AVERAGE_LABEL,
    BASE,
    benchmark_key,
    benchmark_label,
    method_key,
    method_label,
    order_methods,
    setup_key,
    setup_title,
)
from analysis.numbers import round_to_tenths, tenths_text
from analysis.table.evidence_columns import EVIDENCE_COLUMNS
from orchestrator.selection.scores import PASS_AT_1, Metric, exact_mean
from orchestrator.sheet import Cell, Mark, Sheet

CSV_COLUMNS = ("method", "setup", "benchmark", "pass_at_1")

_Values = Mapping[tuple[str, str, str], Fraction | None]
_Labels = Mapping[tuple[str, str], str]  # (setup, benchmark) → heading


@dataclass(frozen=True)
class Score:
    """pass@1 of one method on one benchmark, exact, in percent (0 to 100); None if it is missing.

    A score whose benchmark is `avg` overrides the computed mean of its method and setup.
    """

    method: str
    setup: str
    benchmark: str
    value: Fraction | None


@dataclass(frozen=True)
class TableColumn:
    """One benchmark of one setup, or the setup's average (benchmark `avg`)."""

    setup: str
    benchmark: str
    label: str


@dataclass(frozen=True)
class Row:
    """One method under its short label; `cells` follow the table's columns."""

    method: str
    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Columns grouped by setup, the average first in each group; rows in the paper's order.

    `facts` are known where the scores come from run directories; `titles` holds those of setups
    that have their own. `verdict` is what may be said of the methods (`analysis.facts.verdict`),
    the last lines of every form.
    """

    columns: tuple[TableColumn, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    facts: Facts | None = None
    titles: Mapping[str, str] = field(default_factory=dict)
    verdict: Verdict = field(default_factory=Verdict)
    metric: Metric = PASS_AT_1

    def title(self, setup: str) -> str:
        """The heading over the columns of a setup."""
        return self.titles.get(setup) or setup_title(setup)

    def places(self) -> dict[str, list[int]]:
        """Each setup in column order with the places of its columns."""
        places: dict[str, list[int]] = {}
        for place, column in enumerate(self.columns):
            places.setdefault(column.setup, []).append(place)
        return places

    def only(self, setup: str) -> Table:
        """The columns of one setup."""
        places = self.places()[setup]
        rows = []
        for row in self.rows:
            rows.append(replace(row, cells=tuple(row.cells[place] for place in places)))
        columns = tuple(self.columns[place] for place in places)
        return replace(self, columns=columns, rows=tuple(rows))

    def sheet(self, reach: bool = True) -> Sheet:
        """The methods with their scores and, unless without `reach`, that of their intervals."""
        facts = self.facts if reach else None
        rows = []
        for row in self.rows:
            cells = [Cell(row.label)]
            for column, cell in zip(self.columns, row.cells, strict=True):
                known = facts and facts.find(column.setup, row.method)
                margin = known.columns[column.benchmark].score.reach if known else ""
                cells.append(replace(cell, reach=margin))
            rows.append(cells)
        return Sheet(["Method", *(column.label for column in self.columns)], rows)


# --- from scores to a table ---


def make_table(
    scores: Iterable[Score],
    notes: Iterable[str] = (),
    facts: Facts | None = None,
    titles: Mapping[str, str] | None = None,
    labels: Mapping[tuple[str, str], str] | None = None,
    verdict: Verdict = Verdict(),  # noqa: B008 (it is frozen)
    metric: Metric = PASS_AT_1,
) -> Table:
    """Average, round and rank scores.

    `titles` are those of setups, `labels` those of a setup's benchmarks. A `metric` other than
    pass@1 stands over the averages. Setups and benchmarks come in the order of their first score.
    The average is the unweighted mean over all benchmarks of the setup, and missing where one of
    them is.
    """
    values = {(score.method, score.setup, score.benchmark): score.value for score in scores}
    benchmarks: dict[str, dict[str, None]] = {}  # of each setup, in order
    for _, setup, benchmark in values:
        own = benchmarks.setdefault(setup, {})
        if benchmark != AVERAGE:
            own[benchmark] = None
    methods = order_methods(method for method, _, _ in values)
    columns: list[TableColumn] = []
    cells: dict[str, list[Cell]] = {method: [] for method in methods}
    for setup, own in benchmarks.items():
        for column in _make_columns(setup, list(own), labels or {}, metric):
            columns.append(column)
            scored = {method: _look_up(values, method, column, own) for method in methods}
            for method, cell in _make_cells(scored).items():
                cells[method].append(cell)
    rows = [Row(method, method_label(method), tuple(cells[method])) for method in methods]
    return Table(tuple(columns), tuple(rows), tuple(notes), facts, titles or {}, verdict, metric)


def _make_columns(
    setup: str, benchmarks: Sequence[str], labels: _Labels, metric: Metric
) -> list[TableColumn]:
    """The average, then the benchmarks under their labels; equal labels give way to the keys."""
    average = AVERAGE_LABEL if metric == PASS_AT_1 else f"{AVERAGE_LABEL} {metric}"
    columns = [TableColumn(setup, AVERAGE, average)]
    label_of = {key: labels.get((setup, key)) or benchmark_label(key) for key in benchmarks}
    uses = Counter(label_of.values())
    for key, label in label_of.items():
        columns.append(TableColumn(setup, key, label if uses[label] == 1 else key))
    return columns


def _look_up(
    values: _Values, method: str, column: TableColumn, benchmarks: Iterable[str]
) -> Fraction | None:
    """A score, or where an average is not given the mean over the setup's benchmarks."""
    value = values.get((method, column.setup, column.benchmark))
    if value is None and column.benchmark == AVERAGE:
        return exact_mean([values.get((method, column.setup, name)) for name in benchmarks])
    return value


def _make_cells(values: Mapping[str, Fraction | None]) -> dict[str, Cell]:
    """Method → cell of one column; the untrained student is a reference and has no rank."""
    ranked = set[int]()
    for method, value in values.items():
        if value is not None and method != BASE:
            ranked.add(round_to_tenths(value))
    # Ranked as printed: scores that round to the same tenth share a place.
    best, second, *_ = [*sorted(ranked, reverse=True), None, None]
    cells = {}
    for method, value in values.items():
        mark: Mark | None = None
        if value is not None and method != BASE:
            tenths = round_to_tenths(value)
            mark = "best" if tenths == best else "second" if tenths == second else None
        cells[method] = Cell("" if value is None else tenths_text(value), value, mark)
    return cells


# --- from a CSV file to scores ---


def read_results(path: str | Path) -> list[Score]:
    """Scores of a UTF-8 CSV file with the columns method, setup, benchmark, pass_at_1.

    Names are keys or labels. An empty value is a missing score. If any value exceeds 1 the whole
    file is in percent, else in fractions; either way the scores are returned in percent. The
    columns that `trb table --format csv` adds are passed over. Raises ValueError, one line that
    names the file, the line, the column, the value and what would be right.
    """
    (line, header), *records = _read_records(path)
    _check_header(f"{path}:{line}", header)
    if not records:
        expected = "expected one row per method, setup and benchmark"
        _fail(f"{path}:{line}", f"no rows follow the header: {expected}")
    scores: dict[tuple[str, str, str], Score] = {}
    lines: dict[tuple[str, str, str], int] = {}
    for line, record in records:
        score = _parse_record(f"{path}:{line}", header, record)
        key = (score.method, score.setup, score.benchmark)
        if key in scores:
            row = f"columns method,setup,benchmark: {','.join(key)!r}"
            problem = f"{row} is already on line {lines[key]}: expected every row once"
            _fail(f"{path}:{line}", problem)
        scores[key], lines[key] = score, line
    # One value above 1 shows that the file is in percent. A file in percent whose values are all at
    # most 1 cannot be told from one in fractions; `formats.to_csv` writes such a table in
    # fractions.
    known = [score.value for score in scores.values() if score.value is not None]
    if max(known, default=0) > 1:
        return list(scores.values())
    in_percent = []
    for score in scores.values():
        value = None if score.value is None else 100 * score.value
        in_percent.append(replace(score, value=value))
    return in_percent


def _fail(where: str, problem: str) -> NoReturn:
    raise ValueError(f"{where}: {problem}")


def _read_records(path: str | Path) -> list[tuple[int, list[str]]]:
    """The header and the rows that are not blank, each with its line number; at least one."""
    try:
        # utf-8-sig: spreadsheets put a byte order mark before the first column's name.
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            records = []
            for record in reader:  # the line number is that of the record which was read last
                records.append((reader.line_num, [" ".join(field.split()) for field in record]))
    except OSError as error:
        expected = f"expected a CSV file with header {','.join(CSV_COLUMNS)}"
        _fail(str(path), f"cannot be read ({error.strerror}): {expected}")
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
        # Columns of evidence are of no use here, but `to_csv` writes them.
        if column not in CSV_COLUMNS + EVIDENCE_COLUMNS:
            _fail(where, f"column {column!r} is unknown; {wanted}")
        if header.count(column) > 1:
            _fail(where, f"column {column} appears {header.count(column)} times; {wanted}")


def _parse_record(where: str, header: Sequence[str], record: Sequence[str]) -> Score:
    """A score in the unit of the file."""
    if len(record) != len(header):
        expected = f"expected {len(header)}, for {','.join(header)}"
        _fail(where, f"{len(record)} values in {','.join(record)!r}: {expected}")
    fields = dict(zip(header, record, strict=True))
    for column in ("method", "setup", "benchmark"):
        if not fields[column]:
            _fail(where, f"column {column}: '' is no name: expected the {column}'s key or label")
    return Score(
        method_key(fields["method"]),
        setup_key(fields["setup"]),
        benchmark_key(fields["benchmark"]),
        _parse_value(f"{where}: column pass_at_1", fields["pass_at_1"]),
    )


def _parse_value(where: str, text: str) -> Fraction | None:
    if not text:
        return None
    try:
        if 0 <= float(text) <= 100:
            return Fraction(text)
    except ValueError:
        expected = "expected one such as 69.7 or 0.697, or nothing if it is missing"
        _fail(where, f"{text!r} is not a number: {expected}")
    expected = "expected percent from 0 to 100 or a fraction from 0 to 1"
    _fail(where, f"{text!r} is out of range: {expected}")
