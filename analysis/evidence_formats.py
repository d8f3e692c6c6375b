"""The evidence behind a results table as text cells, Markdown, comments, CSV fields and plain objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from analysis.evidence import ColumnEvidence, Difference, Estimate, Evidence, RowEvidence
from analysis.labels import AVERAGE, method_label, order_methods
from analysis.split_half import SPLITS
from analysis.table import EVIDENCE_COLUMNS, tenths_text
from analysis.uncertainty import CONFIDENCE, REPLICATES

HEADINGS = ("Method", "Avg", "Split-half", "Fresh", "− vanilla", "Of", "Step", "Setting")
LEFT = ("Method", "Setting")  # the others are numbers
EXPLANATION = (
    f"± and [ ]: {100 * CONFIDENCE:g} % bootstrap over problems and seeds, for the checkpoint as selected. Split-half: "
    "selected on half of the problems, scored on the other half. Fresh: the selected checkpoint on new samples. "
    "Of: checkpoints of the family that have scores."
)


def by_setup(evidence: Evidence) -> list[tuple[str, list[RowEvidence]]]:
    """The rows of each setup in the order of the table."""
    ranks = {method: rank for rank, method in enumerate(order_methods(row.method for row in evidence.rows))}
    return [
        (setup, sorted(rows, key=lambda row: ranks[row.method]))
        for setup, rows in groupby(evidence.rows, key=lambda row: row.setup)
    ]


def text_cells(row: RowEvidence) -> list[str]:
    """A cell for each of HEADINGS; empty where a number is missing."""
    column = row.columns[AVERAGE]
    return [
        method_label(row.method),
        f"{tenths_text(column.score.value)} ±{tenths_text(column.score.margin)}",
        "" if column.split_half is None else tenths_text(column.split_half),
        "" if column.fresh is None else tenths_text(column.fresh.value),
        "" if column.difference is None else with_interval(column.difference.estimate),
        str(row.candidates),
        str(row.step),
        row.setting,
    ]


def with_interval(estimate: Estimate) -> str:
    """A difference: `+0.8 [−1.0, +2.6]`."""
    low, high = estimate.interval.low, estimate.interval.high
    return f"{signed(estimate.value)} [{signed(low)}, {signed(high)}]"


def signed(value: Any) -> str:
    """A number with one decimal and its sign; zero has none."""
    text = tenths_text(value)
    return text.replace("-", "−") if text.startswith("-") or text == "0.0" else f"+{text}"


def markdown_blocks(evidence: Evidence, title: Callable[[str], str]) -> list[str]:
    """Lines of one table for each setup, no wider than 100 columns as they are."""
    rule = ["---" if heading in LEFT else "---:" for heading in HEADINGS]
    lines: list[str] = []
    groups = by_setup(evidence)
    for setup, rows in groups:
        if len(groups) > 1:
            lines += ["", f"**{title(setup)}**"]
        lines += ["", _line(HEADINGS), _line(rule), *(_line(text_cells(row)) for row in rows)]
    return [*lines, "", EXPLANATION] if lines else []


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def comment_lines(evidence: Evidence) -> Iterator[str]:
    """A line for each row, then the explanation."""
    for setup, rows in by_setup(evidence):
        for row in rows:
            method, average, *rest = text_cells(row)
            parts = [f"{name} {text}" for name, text in zip(HEADINGS[2:], rest, strict=True) if text]
            yield f"{setup} {method}: {', '.join([average, *parts])}"
    if evidence.rows:
        yield EXPLANATION


def csv_fields(row: RowEvidence | None, benchmark: str, scale: float) -> list[str]:
    """Values for `table.EVIDENCE_COLUMNS`; scores in percent times `scale`. All empty without a row."""
    if row is None:
        return [""] * len(EVIDENCE_COLUMNS)
    column = row.columns[benchmark]
    fresh, gap = column.fresh, column.difference
    numbers = [column.score.interval.low, column.score.interval.high, column.split_half, *_limits(fresh)]
    numbers += _limits(gap.estimate if gap else None)
    decimals = 2 if scale == 1 else 4
    texts = ["" if number is None else f"{float(number) * scale:.{decimals}f}" for number in numbers]
    return [
        *texts,
        "" if gap is None else f"{gap.p_value:.4f}",
        *(str(row.candidates), str(row.step), row.setting, str(len(row.units))),
        *(str(column.problems), str(column.samples), "" if column.n is None else str(column.n)),
    ]


def to_object(evidence: Evidence | None) -> dict[str, Any]:
    """`evidence`, `benchmarks` and `bootstrap` of the JSON form; scores in percent, missing numbers null."""
    if evidence is None:
        return {"evidence": [], "benchmarks": [], "bootstrap": None}
    rows = [row for _, rows in by_setup(evidence) for row in rows]
    return {
        "evidence": [_row_object(row) for row in rows],
        "benchmarks": [asdict(source) for source in evidence.benchmarks],
        "bootstrap": {"confidence": CONFIDENCE, "replicates": REPLICATES, "splits": SPLITS},
    }


def estimate_object(estimate: Estimate | None) -> dict[str, float] | None:
    """Value and limits; the limits to the decimals that a bootstrap can hold."""
    if estimate is None:
        return None
    low, high = estimate.interval.low, estimate.interval.high
    return {"value": float(estimate.value), "low": round(low, 4), "high": round(high, 4)}


def difference_object(difference: Difference | None) -> dict[str, float] | None:
    """An estimate with its p-value."""
    found = estimate_object(difference.estimate) if difference else None
    return {**found, "p_value": round(difference.p_value, 4)} if found and difference else None


def _row_object(row: RowEvidence) -> dict[str, Any]:
    fields = ("setup", "method", "knobs", "step", "units", "candidates", "eligible", "complete")
    columns = {name: _column_object(column) for name, column in row.columns.items()}
    spread = None if row.spread is None else round(row.spread, 4)
    return {**{name: getattr(row, name) for name in fields}, "spread": spread, "columns": columns}


def _column_object(column: ColumnEvidence) -> dict[str, Any]:
    return {
        "score": estimate_object(column.score),
        "split_half": None if column.split_half is None else round(column.split_half, 4),
        "fresh": estimate_object(column.fresh),
        "minus_vanilla": difference_object(column.difference),
        **{name: getattr(column, name) for name in ("problems", "samples", "n")},
    }


def _limits(estimate: Estimate | None) -> list[Any]:
    """Value, low and high."""
    if estimate is None:
        return [None] * 3
    return [estimate.value, estimate.interval.low, estimate.interval.high]
