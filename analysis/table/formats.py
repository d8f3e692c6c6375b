"""A results table as Markdown, LaTeX (booktabs, laid out as in the paper), CSV and JSON.

Each ends in the verdict, the CSV form excepted, which can hold cells only: who writes it shows the
verdict beside it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from analysis.facts.candidates import PASS_AT_1
from analysis.facts.columns import NumberKind
from analysis.facts.evidence import Verdict
from analysis.labels import AVERAGE, BASE, method_title
from analysis.numbers import round_to_tenths
from analysis.table import evidence_formats
from analysis.table.model import CSV_COLUMNS, Table
from orchestrator import sheet
from orchestrator.experiment.methods import PROPOSED
from orchestrator.sheet import Cell, Mark, Sheet, escaped

LATEX_WIDTH, LATEX_CELL = 95, 9  # letters of a line of text, and of a score with its reach
_LATEX_MARKS: Mapping[Mark | None, str] = {"best": r"\textbf{%s}", "second": r"\underline{%s}"}
_LATEX_REACH = r"{\scriptsize$\pm$%s}"
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
    """A GitHub table: setup titles over column names, best bold, second underlined.

    Below it stand a table of the evidence for each setup, the notes and the verdict.
    """
    # Markdown has a single heading row; it takes the titles, and the column names become the first
    # row.
    titles = [""]
    for setup, places in table.places().items():
        titles += [_markdown(table.title(setup)), *[""] * (len(places) - 1)]
    rows = [_heading_row(table), *_method_rows(table)]
    lines = sheet.to_markdown(Sheet(titles, rows), _MARKDOWN_ESCAPES)
    lines += evidence_formats.markdown_blocks(table.facts, table.title) if table.facts else []
    last = [_markdown(note) for note in table.notes]
    last += [f"**{_markdown(sentence)}**" for sentence in table.verdict.sentences]
    last += [_markdown(caveat) for caveat in table.verdict.caveats]
    last += markdown_advice(table.verdict)
    return "\n".join(lines) + "\n" + "".join(f"\n{line}\n" for line in last)


def markdown_advice(verdict: Verdict) -> list[str]:
    """Paragraphs: why to run the command of a verdict, and the command as a block to copy."""
    return [verdict.advice.reason, f"```\n{verdict.advice.command}\n```"] if verdict.advice else []


def to_latex(table: Table) -> str:
    """A booktabs tabular laid out as in the paper, between notes, evidence and verdict as comments.

    With evidence each score has the reach of its interval, and setups that would be too wide side
    by side have a tabular each.
    """
    evidence = evidence_formats.comment_lines(table.facts) if table.facts else ()
    lines = []
    for comment in (r"needs \usepackage{booktabs}", *table.notes, *evidence):
        lines.append(f"% {_one_line(comment)}")
    for part in _latex_parts(table):
        columns = "|".join("c" * len(places) for places in part.places().values())
        lines += [rf"\begin{{tabular}}{{l{columns}}}", r"\toprule", *_latex_titles(part)]
        lines.append(_latex_row(_heading_row(part)))
        # Rules part the method of the paper, its rivals, and the untrained student.
        groups: list[list[str]] = [[], [], []]
        for row, cells in zip(part.rows, _method_rows(part), strict=True):
            named = replace(cells[0], text=_one_line(method_title(row.method)))
            indent = "" if row.method == PROPOSED else r"\quad "
            group = {PROPOSED: 0, BASE: 2}.get(row.method, 1)
            groups[group].append(indent + _latex_row([named, *cells[1:]]))
        for group in groups:
            lines += [r"\midrule", *group] if group else []
        lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [f"% {_one_line(line)}" for line in table.verdict.lines()]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """The long form that `read_results` takes: all cells and averages, percent with one decimal.

    Where no cell exceeds 1 percent the values are fractions with three decimals, since the reader
    would take such percentages for fractions. Where the facts are known the columns of the evidence
    follow, in the same unit with one decimal more. Notes have no place in this form.
    """
    highest = 0
    for row in table.rows:
        for cell in row.cells:
            highest = max(highest, 0 if cell.value is None else round_to_tenths(cell.value))
    fractions, rows = 0 < highest <= 10, []
    units = dict(evidence_formats.CELL_UNITS) if table.facts else {}
    known = evidence_formats.cell_records(table.facts)
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            text = cell.text
            if fractions and cell.value is not None:  # at most 1 percent: 0.7 percent is 0.007
                text = f"0.{round_to_tenths(cell.value):03d}"
            record = known.get((row.method, column.setup, column.benchmark), {})
            texts = [_number_text(record.get(name), units[name], fractions) for name in units]
            rows.append([row.method, column.setup, column.benchmark, text, *texts])
    return sheet.to_csv([*CSV_COLUMNS[:-1], table.metric.column, *units], rows)


def _number_text(value: Any, unit: NumberKind, fractions: bool) -> str:
    """A value of the evidence in CSV; scores are in the unit of the table's."""
    if value is None:
        return ""
    if unit == "percent":
        return f"{value / 100:.4f}" if fractions else f"{value:.2f}"
    return f"{value:.4f}" if unit == "number" else str(value)


def to_json(table: Table) -> str:
    """Columns, rows, notes, evidence and verdict with sorted keys.

    A cell has `value` (percent before rounding, null if missing), `text` (one decimal, empty if
    missing) and `mark` ("best", "second" or null). `evidence` has the records of each block
    (`facts.columns.records`), `benchmarks` an entry for each benchmark of a setup, `bootstrap` says
    how intervals over problems were made, `caption` what all mean; empty and null for a table from
    a CSV file. `verdict` has a sentence for each method, and `advice` the command that gives every
    method more seeds, with the trials it adds.
    """
    rows = []
    for row in table.rows:
        cells = []
        for cell in row.cells:
            value = None if cell.value is None else float(cell.value)
            cells.append({"value": value, "text": cell.text, "mark": cell.mark})
        names = {"method": row.method, "label": row.label, "title": method_title(row.method)}
        rows.append(names | {"cells": cells})
    document = {
        "columns": [asdict(column) for column in table.columns],
        "rows": rows,
        "notes": list(table.notes),
        "verdict": list(table.verdict.sentences),
        "caveats": list(table.verdict.caveats),
        "advice": asdict(table.verdict.advice) if table.verdict.advice else None,
        **evidence_formats.to_object(table.facts),
    }
    if table.metric != PASS_AT_1:
        document["metric"] = str(table.metric)
    return json.dumps(document, ensure_ascii=False, indent=2, sort_keys=True) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _heading_row(table: Table) -> list[Cell]:
    """The names of the columns, the averages' bold."""
    cells = [Cell("Method", mark="best")]
    for column in table.columns:
        cells.append(Cell(column.label, mark="best" if column.benchmark == AVERAGE else None))
    return cells


def _method_rows(table: Table) -> list[list[Cell]]:
    """The scores; the name of a method with the best average of every setup is bold."""
    rows = []
    for row, (label, *cells) in zip(table.rows, table.sheet().rows, strict=True):
        averages = []
        for column, cell in zip(table.columns, row.cells, strict=True):
            if column.benchmark == AVERAGE:
                averages.append(cell.mark)
        mark: Mark | None = "best" if set(averages) == {"best"} else None
        rows.append([replace(label, text=_one_line(label.text), mark=mark), *cells])
    return rows


def _markdown(text: str) -> str:
    return _one_line(text).translate(_MARKDOWN_ESCAPES)


def _latex_line(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def _latex_titles(table: Table) -> list[str]:
    """The line of setup titles and the rules under them; nothing for a table without columns."""
    titles, rules, start = [""], [], 2
    for setup, places in table.places().items():
        width = len(places)
        title = _one_line(table.title(setup)).translate(_LATEX_ESCAPES)
        titles.append(rf"\multicolumn{{{width}}}{{c}}{{{title}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    return [_latex_line(titles).lstrip(), " ".join(rules)] if rules else []


def _latex_row(cells: Sequence[Cell]) -> str:
    return _latex_line(
        [cell.marked(_LATEX_MARKS, _LATEX_REACH) for cell in escaped(cells, _LATEX_ESCAPES)]
    )


def _latex_parts(table: Table) -> list[Table]:
    """The table, or one for each setup where the reach of intervals makes it too wide."""
    widest = max((len(method_title(row.method)) for row in table.rows), default=0)
    wide = widest + LATEX_CELL * len(table.columns) > LATEX_WIDTH
    setups = list(table.places())
    if table.facts is not None and len(setups) > 1 and wide:
        return [table.only(setup) for setup in setups]
    return [table]


FORMATS: Mapping[str, Callable[[Table], str]] = {
    "md": to_markdown,
    "tex": to_latex,
    "csv": to_csv,
    "json": to_json,
}
