"""The evidence behind a results table as text cells, Markdown, comments and plain objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from analysis.labels import AVERAGE, method_label, order_methods
from analysis.numbers import p_text, signed, tenths_text
from analysis.scores.evidence import ONE_RUN, ColumnEvidence, ConfirmedRow, Difference, Estimate, Evidence, RowEvidence
from analysis.scores.split_half import SPLITS
from analysis.scores.uncertainty import CONFIDENCE, REPLICATES
from analysis.table.captions import UNEQUAL, explanation

# Columns of the table of selected checkpoints, in this order.
METHOD, SCORE, SPLIT_HALF, FRESH, LEFT_OUT, GAP = "Method", "Avg", "Split-half", "Fresh", "Left-out", "− Vanilla"
LIMITS, P, OF, SEEDS, STEP, SETTING = f"{100 * CONFIDENCE:g} % interval", "p", "Of", "Seeds", "Step", "Setting"
HEADINGS = (METHOD, SCORE, SPLIT_HALF, FRESH, LEFT_OUT, GAP, LIMITS, P, OF, SEEDS, STEP, SETTING)
LEFT = (METHOD, SETTING)  # the others are numbers


def by_setup(evidence: Evidence) -> list[tuple[str, list[RowEvidence]]]:
    """The rows of each setup in the order of the table."""
    order = list(order_methods(row.method for row in evidence.rows))
    groups = []
    for setup, rows in groupby(evidence.rows, key=lambda row: row.setup):
        groups.append((setup, sorted(rows, key=lambda row: order.index(row.method))))
    return groups


def text_rows(rows: Sequence[RowEvidence]) -> tuple[list[str], list[dict[str, str]]]:
    """The headings that these rows need, and for each row its cells; a number that is missing is an empty cell."""
    cells = [_cells(row) for row in rows]
    filled = {name for row in cells for name, text in row.items() if text}
    # Without vanilla nothing is compared, and without several seeds nothing has a p-value; other columns always stand.
    needed = [name for name in HEADINGS if name in filled or name not in (LEFT_OUT, GAP, LIMITS, P)]
    return needed, cells


# Columns of the table of confirmed checkpoints.
CONFIRMED, EXPLORED, LEAD, RUNS = "Confirmed", "Explored", "Lead", "Seeds"
CONFIRMED_HEADINGS = (METHOD, CONFIRMED, GAP, LIMITS, P, EXPLORED, LEAD, RUNS, STEP, SETTING)
CONFIRMED_TITLE = "Confirmed on seeds that took no part in choosing"


def confirmed_by_setup(evidence: Evidence) -> list[tuple[str, list[ConfirmedRow]]]:
    """The confirmed rows of each setup in the order of the table."""
    order = list(order_methods(row.method for row in evidence.confirmed))
    groups = []
    for setup, rows in groupby(evidence.confirmed, key=lambda row: row.setup):
        groups.append((setup, sorted(rows, key=lambda row: order.index(row.method))))
    return groups


def confirmed_text_rows(rows: Sequence[ConfirmedRow]) -> tuple[list[str], list[dict[str, str]]]:
    """The headings and cells of confirmed rows, as `text_rows` gives them for others."""
    cells = [_confirmed_cells(row) for row in rows]
    filled = {name for row in cells for name, text in row.items() if text}
    return [name for name in CONFIRMED_HEADINGS if name in filled], cells


def _confirmed_cells(row: ConfirmedRow) -> dict[str, str]:
    column = row.columns.get(AVERAGE)
    gap = column.difference if column else None
    return {
        METHOD: method_label(row.method),
        CONFIRMED: f"{tenths_text(column.score.value)} ±{column.score.reach}" if column else "",
        GAP: gap_text(gap) if gap else "",
        LIMITS: limits_text(gap) if gap else "",
        P: p_text(gap.p_value) if gap else "",
        EXPLORED: tenths_text(column.explored) if column else "",
        LEAD: signed(column.lead) if column else "",
        RUNS: str(len(row.units)) if row.complete else f"{len(row.units)} of {row.wanted}",
        STEP: str(row.step),
        SETTING: " ".join(f"{name}={value:g}" for name, value in row.knobs.items()),
    }


def gap_text(gap: Difference) -> str:
    """A difference: `+7.5 (1 seed)`, or `+7.5` where its interval is over seeds."""
    return f"{signed(gap.estimate.value)}{_caveat(gap)}"


def tested_text(gap: Difference) -> str:
    """The p-value of a difference; in its place, where several seeds would have one, that it was not tested."""
    unequal = gap.chosen_from is not None and gap.estimate.over == "seeds"
    return UNEQUAL if unequal else p_text(gap.p_value)


def limits_text(gap: Difference) -> str:
    """`[+1.2, +7.0]`; one that leaves the training runs as they are is named: `[+4.6, +10.4] problems only`."""
    low, high = gap.estimate.interval.low, gap.estimate.interval.high
    return f"[{signed(low)}, {signed(high)}]{' problems only' if gap.estimate.over == 'problems' else ''}"


def markdown_blocks(evidence: Evidence, title: Callable[[str], str]) -> list[str]:
    """Lines of one table for each setup, then the explanation."""
    lines: list[str] = []
    groups = by_setup(evidence)
    for setup, rows in groups:
        if len(groups) > 1:
            lines += ["", f"**{title(setup)}**"]
        headings, cells = text_rows(rows)
        rule = ["---" if heading in LEFT else "---:" for heading in headings]
        lines += ["", _line(headings), _line(rule)]
        for row in cells:
            lines.append(_line([row[name].replace(ONE_RUN, f"\\{ONE_RUN}") for name in headings]))
    for setup, rows in confirmed_by_setup(evidence):
        of_setup = f", {title(setup)}" if len(groups) > 1 else ""
        headings, cells = confirmed_text_rows(rows)
        rule = ["---" if heading in LEFT else "---:" for heading in headings]
        lines += ["", f"**{CONFIRMED_TITLE}{of_setup}**", "", _line(headings), _line(rule)]
        lines += [_line([row[name] for name in headings]) for row in cells]
    return [*lines, "", " ".join(explanation(evidence)).replace(ONE_RUN, f"\\{ONE_RUN}")] if lines else []


def comment_lines(evidence: Evidence) -> Iterator[str]:
    """A line for each row, then the explanation, a line for each sentence."""
    for setup, rows in by_setup(evidence):
        headings, cells = text_rows(rows)
        for row in cells:
            parts = [f"{name} {row[name]}" for name in headings[2:] if row[name]]
            yield f"{setup} {row[METHOD]}: {', '.join([row[SCORE], *parts])}"
    for setup, rows in confirmed_by_setup(evidence):
        headings, cells = confirmed_text_rows(rows)
        for row in cells:
            parts = [f"{name} {row[name]}" for name in headings[1:] if row[name]]
            yield f"{setup} {row[METHOD]} confirmed: {', '.join(parts)}"
    yield from explanation(evidence)


def to_object(evidence: Evidence | None) -> dict[str, Any]:
    """The evidence in the JSON form; scores in percent, missing numbers null."""
    if evidence is None:
        return {"evidence": [], "benchmarks": [], "bootstrap": None, "seed_spread": {}, "caption": []}
    rows: list[RowEvidence] = []
    for _, of_setup in by_setup(evidence):
        rows += of_setup
    spreads: dict[str, dict[str, Any]] = {}
    for (setup, column), spread in evidence.spreads.items():
        known = spread and {"standard_deviation": round(spread.deviation, 4), "degrees_of_freedom": spread.freedom}
        spreads.setdefault(setup, {})[column] = known
    confirmed = {"confirmed": [_confirmed_object(row) for row in evidence.confirmed]} if evidence.confirmed else {}
    return {
        **confirmed,
        "evidence": [_row_object(row) for row in rows],
        "benchmarks": [asdict(source) for source in evidence.benchmarks],
        "bootstrap": {"confidence": CONFIDENCE, "replicates": REPLICATES, "splits": SPLITS},
        "seed_spread": spreads,
        "caption": explanation(evidence),
    }


def estimate_object(estimate: Estimate | None) -> dict[str, Any] | None:
    """Value, limits and what the interval is over; the limits to the decimals that a bootstrap can hold."""
    if estimate is None:
        return None
    low, high = estimate.interval.low, estimate.interval.high
    return {
        "value": float(estimate.value),
        "low": round(low, 4),
        "high": round(high, 4),
        "interval_over": [estimate.over],
    }


def difference_object(difference: Difference | None) -> dict[str, Any] | None:
    """An estimate with its p-value, null where there is none."""
    found = estimate_object(difference.estimate) if difference else None
    if found is None or difference is None:
        return None
    p_value = None if difference.p_value is None else round(difference.p_value, 4)
    found |= {"p_value": p_value}
    if difference.adjusted > 1 and difference.holm is not None:
        found |= {"p_value_holm": round(difference.holm, 4), "corrected_for": difference.adjusted}
    return found if difference.chosen_from is None else found | {"chosen_from": list(difference.chosen_from)}


def _cells(row: RowEvidence) -> dict[str, str]:
    """A cell for each of HEADINGS."""
    column, gap = row.columns[AVERAGE], row.columns[AVERAGE].difference
    return {
        METHOD: method_label(row.method),
        SCORE: f"{tenths_text(column.score.value)} ±{column.score.reach}",
        SPLIT_HALF: "" if column.split_half is None else tenths_text(column.split_half),
        FRESH: "" if column.fresh is None else tenths_text(column.fresh.value),
        LEFT_OUT: "" if column.left_out is None else tenths_text(column.left_out),
        GAP: "" if gap is None else gap_text(gap),
        LIMITS: "" if gap is None else limits_text(gap),
        P: "" if gap is None else tested_text(gap),
        OF: str(row.candidates),
        SEEDS: str(row.seeds) if row.seeds else "",
        STEP: str(row.step),
        SETTING: row.setting,
    }


def _caveat(gap: Difference) -> str:
    if gap.estimate.over == "seeds":
        return ""
    return {0: " (no seeds)", 1: " (1 seed)"}.get(min(gap.runs), " (equal seeds)")


def _confirmed_object(row: ConfirmedRow) -> dict[str, Any]:
    columns = {}
    for name, column in row.columns.items():
        columns[name] = {
            "score": estimate_object(column.score),
            "explored": float(column.explored),
            "lead": float(column.lead),
            "minus_vanilla": difference_object(column.difference),
        }
    names = ("setup", "method", "knobs", "step", "units", "wanted")
    return {**{name: getattr(row, name) for name in names}, "columns": columns}


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row_object(row: RowEvidence) -> dict[str, Any]:
    fields = ("setup", "method", "knobs", "step", "units", "seeds", "candidates", "eligible", "complete")
    columns = {name: _column_object(column) for name, column in row.columns.items()}
    spread = None if row.spread is None else round(row.spread, 4)
    return {**{name: getattr(row, name) for name in fields}, "spread": spread, "columns": columns}


def _column_object(column: ColumnEvidence) -> dict[str, Any]:
    return {
        "score": estimate_object(column.score),
        "split_half": None if column.split_half is None else round(column.split_half, 4),
        "fresh": estimate_object(column.fresh),
        "left_out": None if column.left_out is None else round(column.left_out, 4),
        "minus_vanilla": difference_object(column.difference),
        **{name: getattr(column, name) for name in ("problems", "samples", "n")},
    }
