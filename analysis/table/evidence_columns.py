"""What a CSV results table adds where it knows what stands behind its scores: each column's name with its value."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from analysis.scores.evidence import ColumnEvidence, RowEvidence

# Name → number in percent, None where it is missing; it is written in the unit of the table's scores.
SCORES: dict[str, Callable[[ColumnEvidence], float | Fraction | None]] = {
    "ci_low": lambda column: column.score.interval.low,
    "ci_high": lambda column: column.score.interval.high,
    "split_half": lambda column: column.split_half,
    "fresh": lambda column: column.fresh and column.fresh.value,
    "fresh_low": lambda column: column.fresh and column.fresh.interval.low,
    "fresh_high": lambda column: column.fresh and column.fresh.interval.high,
    "minus_vanilla": lambda column: column.difference and column.difference.estimate.value,
    "minus_vanilla_low": lambda column: column.difference and column.difference.estimate.interval.low,
    "minus_vanilla_high": lambda column: column.difference and column.difference.estimate.interval.high,
}

# Name → text as it is written, empty where it is missing.
FACTS: dict[str, Callable[[RowEvidence, ColumnEvidence], str]] = {
    "p_value": lambda _, column: _p_value(column),
    "candidates": lambda row, _: str(row.candidates),
    "step": lambda row, _: str(row.step),
    "setting": lambda row, _: row.setting,
    "seeds": lambda row, _: str(len(row.units)),
    "problems": lambda _, column: str(column.problems),
    "samples": lambda _, column: str(column.samples),
    "n": lambda _, column: "" if column.n is None else str(column.n),
    "interval_over": lambda _, column: column.score.over,
    "minus_vanilla_over": lambda _, column: column.difference.estimate.over if column.difference else "",
}

EVIDENCE_COLUMNS = (*SCORES, *FACTS)


def csv_fields(row: RowEvidence | None, benchmark: str, scale: float) -> list[str]:
    """Values for `EVIDENCE_COLUMNS`; scores in percent times `scale`, which is 1 or 1/100. All empty without a row."""
    if row is None:
        return [""] * len(EVIDENCE_COLUMNS)
    column = row.columns[benchmark]
    decimals = 2 if scale == 1 else 4
    fields = []
    for score_of in SCORES.values():
        score = score_of(column)
        fields.append("" if score is None else f"{float(score) * scale:.{decimals}f}")
    return fields + [text_of(row, column) for text_of in FACTS.values()]


def _p_value(column: ColumnEvidence) -> str:
    gap = column.difference
    return "" if gap is None or gap.p_value is None else f"{gap.p_value:.4f}"
