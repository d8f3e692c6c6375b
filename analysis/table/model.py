"""The paper's results table, from run directories or from a CSV file; `formats` writes it out.

Scores are exact fractions in percent (0 to 100) from input to the printed digit; binary floats
appear only as numbers in the JSON output. Layout and marks are those of the paper's main results
table.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from statistics import mean

from analysis.facts.candidates import PASS_AT_1, Metric
from analysis.facts.evidence import Depth, Facts, Verdict
from analysis.facts.facts import facts
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
from orchestrator.selection.study import Study
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
    that have their own. `verdict` is what may be said of the methods (`facts.verdict`),
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


# --- from facts, or other scores, to a table ---


def results_table(
    study: Study, metric: Metric = PASS_AT_1, cost: str = "updates", depth: Depth = "all"
) -> Table:
    """The paper's table so far, with what it rests on, as `facts` computes it."""
    return table_of(facts(study, metric, cost, depth))


def table_of(known: Facts) -> Table:
    """The paper's table; without evidence where the facts are scores only."""
    setups = known.experiment.setups
    scores, titles, labels = [], {}, {}
    for name, setup in setups.items():
        titles[name] = setup_title(name, setups)
        for key, run in setup.evaluation.benchmarks.items():
            labels[name, key] = benchmark_label(key, run)
        # Every method of the experiment has its row, with empty cells before its first scores.
        for family in [BASE, *known.experiment.methods]:
            of_family = known.scores.get((name, family), {})
            for key in setup.evaluation.benchmarks:
                scores.append(Score(family, name, key, of_family.get(key)))
    with_evidence = None if known.depth == "scores" else known
    return make_table(
        scores, known.notes, with_evidence, titles, labels, known.verdict, known.metric
    )


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
        unranked = {BASE, *_single_runs(facts, setup)}
        for column in _make_columns(setup, list(own), labels or {}, metric):
            columns.append(column)
            scored = {method: _look_up(values, method, column, own) for method in methods}
            for method, cell in _make_cells(scored, unranked).items():
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
        scores = [values.get((method, column.setup, name)) for name in benchmarks]
        known = [score for score in scores if score is not None]
        return mean(known) if known and len(known) == len(scores) else None
    return value


def _single_runs(facts: Facts | None, setup: str) -> set[str]:
    """Methods with one training run beside others that are means of several: they have no rank."""
    rows = [row for row in facts.rows if row.setup == setup] if facts else []
    seeds = {row.method: row.seeds for row in rows}
    single = {method for method, count in seeds.items() if count == 1}
    return single if max(seeds.values(), default=1) > 1 else set()


def _make_cells(
    values: Mapping[str, Fraction | None], unranked: Collection[str]
) -> dict[str, Cell]:
    """Method → cell of one column; the untrained student, a reference, is among the `unranked`."""
    ranked = set[int]()
    for method, value in values.items():
        if value is not None and method not in unranked:
            ranked.add(round_to_tenths(value))
    # Ranked as printed: scores that round to the same tenth share a place.
    best, second, *_ = [*sorted(ranked, reverse=True), None, None]
    cells = {}
    for method, value in values.items():
        mark: Mark | None = None
        if value is not None and method not in unranked:
            tenths = round_to_tenths(value)
            mark = "best" if tenths == best else "second" if tenths == second else None
        cells[method] = Cell("" if value is None else tenths_text(value), value, mark)
    return cells


# --- from a CSV file to scores ---


def read_results(path: str | Path) -> list[Score]:
    """Scores of a UTF-8 CSV file with the columns method, setup, benchmark, pass_at_1.

    Names are keys or labels. An empty value is a missing score. If any value exceeds 1 the whole
    file is in percent, else in fractions; either way the scores are returned in percent. Other
    columns are passed over. Raises ValueError, one line that names the file, the line, the value
    and what would be right.
    """
    scores: dict[tuple[str, str, str], Score] = {}
    for line, record in _read_records(path):
        score = _parse_record(f"{path}:{line}", record)
        key = (score.method, score.setup, score.benchmark)
        if key in scores:
            raise ValueError(f"{path}:{line}: {','.join(key)!r}: expected every row once")
        scores[key] = score
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


def _read_records(path: str | Path) -> list[tuple[int, dict[str, str]]]:
    """The rows by column, each with its line number; at least one."""
    expected = f"expected a UTF-8 CSV file with header {','.join(CSV_COLUMNS)}"
    try:
        # utf-8-sig: spreadsheets put a byte order mark before the first column's name.
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            records = [(lines.line_num, [field.strip() for field in line]) for line in lines]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{path}: cannot be read ({reason}): {expected}") from None
    (_, header), *rows = [record for record in records if any(record[1])] or [(1, [])]
    lacking = [column for column in CSV_COLUMNS if column not in header]
    if lacking or not rows:
        problem = f"has no column {lacking[0]}" if lacking else "has no rows below its header"
        raise ValueError(f"{path}: {problem}: {expected}")
    found = []
    for line, fields in rows:
        if len(fields) != len(header):
            many = f"{len(fields)} values in {','.join(fields)!r}"
            raise ValueError(f"{path}:{line}: {many}: expected {len(header)}, as in the header")
        found.append((line, dict(zip(header, fields, strict=True))))
    return found


def _parse_record(where: str, record: Mapping[str, str]) -> Score:
    """A score in the unit of the file."""
    for column in ("method", "setup", "benchmark"):
        if not record[column]:
            raise ValueError(f"{where}: column {column}: '': expected a key or label")
    return Score(
        method_key(record["method"]),
        setup_key(record["setup"]),
        benchmark_key(record["benchmark"]),
        _parse_value(where, record["pass_at_1"]),
    )


def _parse_value(where: str, text: str) -> Fraction | None:
    """The exact number; None where the text is empty."""
    if not text:
        return None
    try:
        if 0 <= float(text) <= 100:
            return Fraction(text)
    except ValueError:
        pass
    expected = "expected percent from 0 to 100, a fraction from 0 to 1, or nothing if it is missing"
    raise ValueError(f"{where}: column pass_at_1: {text!r}: {expected}")
