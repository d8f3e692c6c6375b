"""The evidence of a results table's cell as named values: the columns that its CSV form adds, and
their types.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from analysis.scores.evidence import ColumnEvidence, RowEvidence

# Name → number in percent, None where it is missing; a CSV file has it in the unit of the table's
# scores.
SCORES: dict[str, Callable[[ColumnEvidence], float | Fraction | None]] = {
    "ci_low": lambda column: column.score.interval.low,
    "ci_high": lambda column: column.score.interval.high,
    "split_half": lambda column: column.split_half,
    "fresh": lambda column: column.fresh and column.fresh.value,
    "fresh_low": lambda column: column.fresh and column.fresh.interval.low,
    "fresh_high": lambda column: column.fresh and column.fresh.interval.high,
    "minus_vanilla": lambda column: column.difference and column.difference.estimate.value,
    "minus_vanilla_low": lambda column: (
        column.difference and column.difference.estimate.interval.low
    ),
    "minus_vanilla_high": lambda column: (
        column.difference and column.difference.estimate.interval.high
    ),
}

# Name → type of a DataFrame's column, and value; None where it is missing.
FACTS: dict[str, tuple[str, Callable[[RowEvidence, ColumnEvidence], Any]]] = {
    "p_value": ("Float64", lambda _, column: column.difference and column.difference.p_value),
    "candidates": ("Int64", lambda row, _: row.candidates),
    "step": ("Int64", lambda row, _: row.step),
    "setting": ("string", lambda row, _: row.setting),
    "seeds": ("Int64", lambda row, _: len(row.units)),
    "problems": ("Int64", lambda _, column: column.problems),
    "samples": ("Int64", lambda _, column: column.samples),
    "n": ("Int64", lambda _, column: column.n),
    "interval_over": ("string", lambda _, column: column.score.over),
    "minus_vanilla_over": (
        "string",
        lambda _, column: column.difference and column.difference.estimate.over,
    ),
}

EVIDENCE_COLUMNS = (*SCORES, *FACTS)
TYPES = dict.fromkeys(SCORES, "Float64") | {name: kind for name, (kind, _) in FACTS.items()}


def evidence_values(row: RowEvidence, benchmark: str) -> dict[str, Any]:
    """The values of `EVIDENCE_COLUMNS` by name, scores in percent."""
    column, values = row.columns[benchmark], dict[str, Any]()
    for name, score_of in SCORES.items():
        score = score_of(column)
        values[name] = None if score is None else float(score)
    return values | {name: value_of(row, column) for name, (_, value_of) in FACTS.items()}


def csv_fields(row: RowEvidence | None, benchmark: str, scale: float) -> list[str]:
    """Texts for `EVIDENCE_COLUMNS`; scores in percent times `scale`, which is 1 or 1/100. All empty
    without a row.
    """
    if row is None:
        return [""] * len(EVIDENCE_COLUMNS)
    decimals = 2 if scale == 1 else 4
    fields = []
    for name, value in evidence_values(row, benchmark).items():
        if value is None:
            fields.append("")
        elif name in SCORES:
            fields.append(f"{value * scale:.{decimals}f}")
        else:
            fields.append(f"{value:.4f}" if name == "p_value" else str(value))
    return fields
