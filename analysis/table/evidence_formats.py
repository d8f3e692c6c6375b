"""The evidence behind a results table as sheets of texts, and its numbers as plain records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, get_args

from analysis import numbers
from analysis.facts.columns import (
    COLUMNS,
    GAP,
    LIMITS,
    METHOD,
    SETTING,
    TITLES,
    BlockKind,
    EvidenceColumn,
    EvidenceRow,
    NumberKind,
    P,
    Value,
    records,
    rows_of,
    units_of,
)
from analysis.facts.evidence import ONE_RUN, Difference, Estimate, Facts
from analysis.facts.intervals import CONFIDENCE, REPLICATES, SPLITS
from analysis.facts.verdict import explanation
from analysis.labels import AVERAGE, method_label
from analysis.numbers import decimal_text, p_text, tenths_text
from orchestrator.sheet import Cell, Sheet, to_markdown

ESCAPES = str.maketrans({ONE_RUN: f"\\{ONE_RUN}"})  # of Markdown
PROBLEMS_ONLY = " problems only"
UNEQUAL = "not tested"  # in place of p, for the best of more or fewer checkpoints than vanilla's
KINDS: tuple[BlockKind, ...] = get_args(BlockKind)


@dataclass(frozen=True)
class EvidenceBlock:
    """A sheet of a setup's selected or confirmed checkpoints, their responses, or their costs.

    `setup` is empty where the block is about all of them.
    """

    setup: str
    kind: BlockKind
    sheet: Sheet

    def heading(self, title: str) -> str:
        """Stands over the block; `title` is the setup's, empty where it is the only one."""
        return ", ".join(filter(None, [TITLES[self.kind], title]))


def blocks(known: Facts | None) -> list[EvidenceBlock]:
    """The selected checkpoints of each setup with their responses, the confirmed ones, the costs."""
    if known is None:
        return []
    found = []
    # The selected checkpoints of a setup, their responses and their distances stand together.
    kinds_of: list[tuple[BlockKind, ...]] = [KINDS[:3], *((kind,) for kind in KINDS[3:])]
    for kinds in kinds_of:
        for setup in ["", *known.experiment.setups]:
            for kind in kinds:
                rows = by_setup(known, kind).get(setup)
                if rows:
                    found.append(EvidenceBlock(setup, kind, block_sheet(kind, rows)))
    return found


def by_setup(known: Facts, kind: BlockKind) -> dict[str, list[Any]]:
    """The rows of a block in each setup, methods in the order of the table."""
    groups: dict[str, list[Any]] = {}
    for row in rows_of(known, kind):
        groups.setdefault(row.setup, []).append(row)
    return groups


def block_sheet(kind: BlockKind, rows: Iterable[EvidenceRow], key: str = AVERAGE) -> Sheet:
    """The rows of a block as texts, for a column of the results table."""
    always = {METHOD, *(column.heading for column in COLUMNS[kind] if column.always)}
    return sheet_of([row_cells(kind, row, key) for row in rows], always)


def row_cells(kind: BlockKind, row: EvidenceRow, key: str = AVERAGE) -> dict[str, str]:
    """Heading → text of a row; empty where a number is missing."""
    cells = {METHOD: method_label(row.method)}
    words = {
        "k": getattr(row, "k", ""),
        "at": getattr(row, "at", ""),
        "device_time": "GPU-hours" if getattr(row, "on_gpus", False) else "Core-min",
    }
    for column in COLUMNS[kind]:
        value = column.read(row, key) if column.heading else None
        if column.holds == "difference":
            gap = value if isinstance(value, Difference) else None
            cells |= gap_cells(gap, column.decimals)
        elif column.heading:
            cells[column.heading.format(**words)] = _text(column, row, value)
    return cells


def _text(column: EvidenceColumn, row: EvidenceRow, value: Value) -> str:
    if column.text is not None:
        return column.text(row)
    if column.holds == "estimate":
        estimate = value if isinstance(value, Estimate) else None
        return score_text(estimate, column.decimals) or str(getattr(row, "why_not", ""))
    if column.unit == "percent" and isinstance(value, Fraction | float):
        return number_text(value)
    return "" if value is None else str(value)


def sheet_of(rows: Iterable[Mapping[str, str]], always: Collection[str] = ()) -> Sheet:
    """Rows of texts by heading; a column without any stands only where it is one of `always`.

    An interval over problems alone is faint.
    """
    rows = list(rows)
    headings = []
    for name in rows[0]:
        if name in always or any(row[name] for row in rows):
            headings.append(name)
    cells = []
    for row in rows:
        of_row = []
        for name in headings:
            of_row.append(Cell(row[name], mark="faint" if row[name].endswith(" only") else None))
        cells.append(of_row)
    left = [place for place, name in enumerate(headings) if name in (METHOD, SETTING)]
    return Sheet(headings, cells, left)


def score_text(score: Estimate | None, decimals: int = 1) -> str:
    """`86.4 ±1.5`; empty where the score is missing."""
    if score is None:
        return ""
    value, margin = (decimal_text(each, decimals) for each in (score.value, score.margin))
    return f"{value} ±{margin}{score.mark}"


def number_text(value: Fraction | float | None) -> str:
    """A number with one decimal; empty where it is missing."""
    return "" if value is None else tenths_text(value)


def gap_cells(gap: Difference | None, decimals: int = 1) -> dict[str, str]:
    """Difference, interval and p by their headings; empty where there is no difference."""
    if gap is None:
        return {GAP: "", LIMITS: "", P: ""}
    limits = limits_text(gap, decimals)
    return {GAP: gap_text(gap, decimals), LIMITS: limits, P: tested_text(gap)}


def gap_text(gap: Difference, decimals: int = 1) -> str:
    """A difference: `+7.5 (1 seed)`, or `+7.5` where its interval is over seeds."""
    text = decimal_text(gap.estimate.value, decimals, plus=True)
    if gap.estimate.over == "seeds":
        return text
    caveats = {0: "no seeds", 1: "1 seed"}
    return f"{text} ({caveats.get(min(gap.runs), 'equal seeds')})"


def tested_text(gap: Difference) -> str:
    """The p-value of a difference, or `not tested` where several seeds would have one."""
    unequal = gap.outcome == "unequal choice" and gap.estimate.over == "seeds"
    return UNEQUAL if unequal else p_text(gap.p_value)


def limits_text(gap: Difference, decimals: int = 1) -> str:
    """`[+1.2, +7.0]`; an interval that is not over seeds: `[+4.6, +10.4] problems only`."""
    within = gap.estimate.interval
    text = numbers.limits_text(within.low, within.high, decimals)
    return text if gap.estimate.over == "seeds" else f"{text} {gap.estimate.over} only"


def markdown_blocks(known: Facts, title: Callable[[str], str]) -> list[str]:
    """Lines of one table for each setup, then the explanation as a list."""
    lines: list[str] = []
    several = len({row.setup for row in known.rows}) > 1
    for block in blocks(known):
        heading = block.heading(title(block.setup) if several and block.setup else "")
        lines += ["", f"**{heading}**"] if heading else []
        lines += ["", *to_markdown(block.sheet, ESCAPES)]
    return (
        [*lines, "", *(f"- {text.translate(ESCAPES)}" for text in explanation(known))]
        if lines
        else []
    )


def comment_lines(known: Facts) -> Iterator[str]:
    """A line for each row, then the explanation, a line for each sentence."""
    for block in blocks(known):
        for method, *cells in block.sheet.rows:
            parts = []
            for name, cell in zip(block.sheet.headings[1:], cells, strict=True):
                if cell.text:
                    parts.append(cell.text if name == "Avg" else f"{name} {cell.text}")
            kind = "" if block.kind == "selected" else f" {block.kind}"
            where = f"{block.setup} " if block.setup else ""
            yield f"{where}{method.text}{kind}: {', '.join(parts)}"
    yield from explanation(known)


# Name → unit of the numbers behind a cell of the table; the score itself stands in the cell.
# Of the distance from the teacher, beside an average; other names would be taken for the score's.
DISTANCE_UNITS: Mapping[str, NumberKind] = {
    name: unit
    for name, unit in units_of("held_out").items()
    if name.startswith(("kl", "first_kl", "tail", "student", "teacher", "sequence"))
}
CELL_UNITS: Mapping[str, NumberKind] = {
    **{name: unit for name, unit in units_of("selected", "responses").items() if name != "score"},
    **DISTANCE_UNITS,
}


def cell_records(known: Facts | None) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Method, setup and benchmark of a cell → the numbers behind it by name.

    The distance from the teacher stands at the average.
    """
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    kinds: tuple[BlockKind, ...] = ("selected", "responses")
    for kind in kinds:
        for record in records(known, kind) if known else ():
            where = record["method"], record["setup"], record["benchmark"]
            found.setdefault(where, {}).update(record)
    for record in records(known, "held_out") if known else ():
        where = record["method"], record["setup"], record["benchmark"]
        values = {name: record[name] for name in DISTANCE_UNITS}
        found.setdefault(where, {}).update(values)
    return found


def to_object(known: Facts | None) -> dict[str, Any]:
    """The evidence in the JSON form: the records of each block, and how intervals were made."""
    document: dict[str, Any] = {
        "evidence": {kind: records(known, kind) if known else [] for kind in KINDS},
        "benchmarks": [],
        "bootstrap": None,
        "caption": [],
    }
    if known is None:
        return document
    return document | {
        "benchmarks": [asdict(source) for source in known.benchmarks],
        "bootstrap": {"confidence": CONFIDENCE, "replicates": REPLICATES, "splits": SPLITS},
        "caption": explanation(known),
    }
