"""The evidence of a results table's cell as named values, the columns of its CSV form."""

from __future__ import annotations

from typing import Any, Literal

from analysis.facts.evidence import RowEvidence
from analysis.facts.responses import AMOUNTS, SHARES

# Column → kind of its values; "percent" is in the unit of the table's scores in a CSV file.
Kind = Literal["percent", "Float64", "Int64", "string"]
KINDS: dict[str, Kind] = {
    "ci_low": "percent",
    "ci_high": "percent",
    "split_half": "percent",
    "fresh": "percent",
    "fresh_low": "percent",
    "fresh_high": "percent",
    "minus_vanilla": "percent",
    "minus_vanilla_low": "percent",
    "minus_vanilla_high": "percent",
    "p_value": "Float64",
    "candidates": "Int64",
    "step": "Int64",
    "setting": "string",
    "seeds": "Int64",
    "problems": "Int64",
    "samples": "Int64",
    "n": "Int64",
    "interval_over": "string",
    "minus_vanilla_over": "string",
    "k": "Int64",
}
for _name in AMOUNTS:
    _kind: Kind = "percent" if _name in SHARES else "Float64"
    KINDS |= {_name: _kind, f"{_name}_low": _kind, f"{_name}_high": _kind}

EVIDENCE_COLUMNS = tuple(KINDS)
TYPES = {name: "Float64" if kind == "percent" else kind for name, kind in KINDS.items()}


def evidence_values(row: RowEvidence, benchmark: str) -> dict[str, Any]:
    """The values of `EVIDENCE_COLUMNS` by name, scores in percent; None where one is missing."""
    column = row.columns[benchmark]
    gap = column.difference
    found: dict[str, Any] = dict.fromkeys(EVIDENCE_COLUMNS)
    numbers = {"": column.score, "fresh": column.fresh, "minus_vanilla": gap and gap.estimate}
    for name, number in (numbers | dict(column.responses)).items():
        if number is not None:
            limits = name or "ci"
            found |= {name: float(number.value)} if name else {}
            found[f"{limits}_low"] = number.interval.low
            found[f"{limits}_high"] = number.interval.high
    return found | {
        "split_half": column.split_half,
        "p_value": gap and gap.p_value,
        "candidates": row.candidates,
        "step": row.step,
        "setting": row.setting,
        "seeds": len(row.units),
        "problems": column.problems,
        "samples": column.samples,
        "n": column.n,
        "interval_over": column.score.over,
        "minus_vanilla_over": gap and gap.estimate.over,
        "k": row.k,
    }


def csv_fields(row: RowEvidence | None, benchmark: str, scale: float) -> list[str]:
    """Texts for `EVIDENCE_COLUMNS`, empty without a row; `scale` is 1, or 1/100 for fractions."""
    if row is None:
        return [""] * len(EVIDENCE_COLUMNS)
    fields = []
    for name, value in evidence_values(row, benchmark).items():
        if value is None:
            fields.append("")
        elif KINDS[name] == "percent":
            fields.append(f"{value * scale:.{2 if scale == 1 else 4}f}")
        elif KINDS[name] == "Float64":
            fields.append(f"{value:.4f}")
        else:
            fields.append(str(value))
    return fields
