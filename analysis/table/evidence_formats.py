"""The evidence behind a results table as text cells, Markdown, comments and plain objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

from analysis.costs import TrainingCost, hours_or_minutes
from analysis.labels import AVERAGE, method_label, order_methods
from analysis.numbers import p_text, signed, tenths_text
from analysis.scores.evidence import (
    ONE_RUN,
    ColumnEvidence,
    ConfirmedRow,
    CostRow,
    CostTable,
    Difference,
    Estimate,
    Evidence,
    RowEvidence,
)
from analysis.scores.split_half import SPLITS
from analysis.scores.uncertainty import CONFIDENCE, REPLICATES
from analysis.table.captions import UNEQUAL, explanation
from orchestrator.sheet import Cell, Sheet, to_markdown

AnyRow = TypeVar("AnyRow", RowEvidence, ConfirmedRow, CostRow)
ESCAPES = str.maketrans({ONE_RUN: f"\\{ONE_RUN}"})  # of Markdown
PROBLEMS_ONLY = " problems only"

# Columns of the table of selected checkpoints, in this order.
METHOD, SCORE, SPLIT_HALF, FRESH, LEFT_OUT, GAP = (
    "Method",
    "Avg",
    "Split-half",
    "Fresh",
    "Left-out",
    "− Vanilla",
)
LIMITS, P, OF, SEEDS, STEP, SETTING = (
    f"{100 * CONFIDENCE:g} % interval",
    "p",
    "Of",
    "Seeds",
    "Step",
    "Setting",
)
ALWAYS = (
    METHOD,
    SCORE,
    SPLIT_HALF,
    FRESH,
    OF,
    SEEDS,
    STEP,
    SETTING,
)  # the others stand where a row has them
CONFIRMED, EXPLORED, LEAD, RUNS = (
    "Confirmed",
    "Explored",
    "Lead",
    "Seeds",
)  # of confirmed checkpoints
AT = "Avg at "  # what follows is a cost
TRAINED = "Seconds"
COST_NUMBERS: Mapping[str, Callable[[TrainingCost], float | None]] = {
    TRAINED: lambda cost: cost.seconds,
    "Student tokens": lambda cost: cost.student_tokens,
    "Teacher scored": lambda cost: cost.teacher_scored,
    "Teacher decoded": lambda cost: cost.teacher_decoded,
    "Supervised": lambda cost: cost.supervised_updates,
    "Updates": lambda cost: cost.updates,
}
PASS, MAJ = "pass@", "maj@"  # k follows
TRUNCATED, NO_ANSWER = "Truncated", "No answer"
RESPONSES: Mapping[str, str] = {
    "pass_at_k": PASS,
    "maj_at_k": MAJ,
    "truncated": TRUNCATED,
    "no_answer": NO_ANSWER,
    "tokens_right": "Tokens right",
    "tokens_wrong": "Tokens wrong",
}
BlockKind = Literal["selected", "responses", "confirmed", "cost"]
TITLES: Mapping[BlockKind, str] = {
    "selected": "",
    "responses": "What pass@1 hides",
    "confirmed": "Confirmed on seeds that took no part in choosing",
    "cost": "Cost of training up to the selected step, and scores at equal cost",
}
LEFT = (METHOD, SETTING)  # the others are numbers


@dataclass(frozen=True)
class EvidenceBlock:
    """A sheet of the selected checkpoints of a setup, of their responses, of the confirmed
    checkpoints, or of what training costs.
    """

    setup: str
    kind: BlockKind
    sheet: Sheet

    def heading(self, title: str) -> str:
        """Stands over the block; `title` is the setup's, empty where it is the only one."""
        return ", ".join(filter(None, [TITLES[self.kind], title]))


def blocks(evidence: Evidence | None) -> list[EvidenceBlock]:
    """The selected checkpoints of each setup with their responses, the confirmed ones, the costs."""
    if evidence is None:
        return []
    found = []
    for setup, rows in by_setup(evidence.rows).items():
        # Without vanilla nothing is compared, and without several seeds nothing has a p-value;
        # other columns stand.
        sheet = sheet_of([_cells(row) for row in rows], ALWAYS)
        found.append(EvidenceBlock(setup, "selected", sheet))
        if any(row.columns[AVERAGE].responses for row in rows):
            responses = [response_cells(row, AVERAGE) for row in rows]
            found.append(EvidenceBlock(setup, "responses", sheet_of(responses)))
    for setup, rows in by_setup(evidence.confirmed).items():
        found.append(
            EvidenceBlock(setup, "confirmed", sheet_of([_confirmed_cells(row) for row in rows]))
        )
    for table in evidence.costs:
        rows = by_setup(table.rows)[table.setup]
        found.append(
            EvidenceBlock(table.setup, "cost", sheet_of([_cost_cells(table, row) for row in rows]))
        )
    return found


def by_setup(rows: Iterable[AnyRow]) -> dict[str, list[AnyRow]]:
    """The rows of each setup, methods in the order of the table."""
    groups: dict[str, list[AnyRow]] = {}
    for row in rows:
        groups.setdefault(row.setup, []).append(row)
    for setup, group in groups.items():
        order = list(order_methods(row.method for row in group))
        groups[setup] = sorted(group, key=lambda row: order.index(row.method))
    return groups


def sheet_of(rows: Sequence[Mapping[str, str]], always: Collection[str] = ()) -> Sheet:
    """Rows of texts by heading; a column without any stands only where it is one of `always`.

    An interval over problems alone is faint.
    """
    filled = {name for row in rows for name, text in row.items() if text}
    headings = [name for name in rows[0] if name in filled or name in always]
    cells = []
    for row in rows:
        cells.append(
            [
                Cell(row[name], mark="faint" if PROBLEMS_ONLY in row[name] else None)
                for name in headings
            ]
        )
    return Sheet(headings, cells, [place for place, name in enumerate(headings) if name in LEFT])


def response_cells(row: RowEvidence, column: str) -> dict[str, str]:
    """A text for each number of the responses, by its heading; empty where it is missing."""
    cells = {METHOD: method_label(row.method)}
    for name, heading in RESPONSES.items():
        number = row.columns[column].responses.get(name)
        shown = f"{heading}{row.k}" if heading in (PASS, MAJ) else heading
        cells[shown] = f"{tenths_text(number.value)} ±{number.reach}" if number else ""
    return cells


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


def _cost_cells(table: CostTable, row: CostRow) -> dict[str, str]:
    column = row.columns.get(AVERAGE)
    gap = column.difference if column else None
    time, texts = row.cost.device_seconds, dict[str, str]()
    for name, number_of in COST_NUMBERS.items():
        value = number_of(row.cost)
        texts[name] = (
            "" if value is None else f"{value:,.1f}" if name == TRAINED else f"{value:,.0f}"
        )
    return {
        METHOD: method_label(row.method),
        f"{AT}{table.text}": f"{tenths_text(column.score.value)} ±{column.score.reach}"
        if column
        else row.why_not,
        GAP: gap_text(gap) if gap else "",
        LIMITS: limits_text(gap) if gap else "",
        P: tested_text(gap) if gap else "",
        "GPU-hours" if table.on_gpus else "Core-min": ""
        if time is None
        else hours_or_minutes(time, table.on_gpus),
        **texts,
    }


def gap_text(gap: Difference) -> str:
    """A difference: `+7.5 (1 seed)`, or `+7.5` where its interval is over seeds."""
    return f"{signed(gap.estimate.value)}{_caveat(gap)}"


def tested_text(gap: Difference) -> str:
    """The p-value of a difference; in its place, where several seeds would have one, that it was
    not tested.
    """
    unequal = gap.chosen_from is not None and gap.estimate.over == "seeds"
    return UNEQUAL if unequal else p_text(gap.p_value)


def limits_text(gap: Difference) -> str:
    """`[+1.2, +7.0]`; one that leaves the training runs as they are is named: `[+4.6, +10.4]
    problems only`.
    """
    low, high = gap.estimate.interval.low, gap.estimate.interval.high
    return (
        f"[{signed(low)}, {signed(high)}]{PROBLEMS_ONLY if gap.estimate.over == 'problems' else ''}"
    )


def markdown_blocks(evidence: Evidence, title: Callable[[str], str]) -> list[str]:
    """Lines of one table for each setup, then the explanation."""
    lines: list[str] = []
    several = len(by_setup(evidence.rows)) > 1
    for block in blocks(evidence):
        heading = block.heading(title(block.setup) if several else "")
        lines += ["", f"**{heading}**"] if heading else []
        lines += ["", *to_markdown(block.sheet, ESCAPES)]
    return [*lines, "", " ".join(explanation(evidence)).translate(ESCAPES)] if lines else []


def comment_lines(evidence: Evidence) -> Iterator[str]:
    """A line for each row, then the explanation, a line for each sentence."""
    for block in blocks(evidence):
        for method, *cells in block.sheet.rows:
            parts = []
            for name, cell in zip(block.sheet.headings[1:], cells, strict=True):
                if cell.text:
                    parts.append(cell.text if name == SCORE else f"{name} {cell.text}")
            kind = "" if block.kind == "selected" else f" {block.kind}"
            yield f"{block.setup} {method.text}{kind}: {', '.join(parts)}"
    yield from explanation(evidence)


def to_object(evidence: Evidence | None) -> dict[str, Any]:
    """The evidence in the JSON form; scores in percent, missing numbers null."""
    if evidence is None:
        return {
            "evidence": [],
            "costs": [],
            "benchmarks": [],
            "bootstrap": None,
            "seed_spread": {},
            "caption": [],
        }
    rows: list[RowEvidence] = []
    for of_setup in by_setup(evidence.rows).values():
        rows += of_setup
    spreads: dict[str, dict[str, Any]] = {}
    for (setup, column), spread in evidence.spreads.items():
        known = spread and {
            "standard_deviation": round(spread.deviation, 4),
            "degrees_of_freedom": spread.freedom,
        }
        spreads.setdefault(setup, {})[column] = known
    confirmed = (
        {"confirmed": [_confirmed_object(row) for row in evidence.confirmed]}
        if evidence.confirmed
        else {}
    )
    return {
        **confirmed,
        "costs": [_cost_object(table) for table in evidence.costs],
        "evidence": [_row_object(row) for row in rows],
        "benchmarks": [asdict(source) for source in evidence.benchmarks],
        "bootstrap": {"confidence": CONFIDENCE, "replicates": REPLICATES, "splits": SPLITS},
        "seed_spread": spreads,
        "caption": explanation(evidence),
    }


def estimate_object(estimate: Estimate | None) -> dict[str, Any] | None:
    """Value, limits and what the interval is over; the limits to the decimals that a bootstrap can
    hold.
    """
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
    return (
        found
        if difference.chosen_from is None
        else found | {"chosen_from": list(difference.chosen_from)}
    )


def _cells(row: RowEvidence) -> dict[str, str]:
    """A text for each column, by its heading."""
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


def _cost_object(table: CostTable) -> dict[str, Any]:
    """A setup's methods at equal cost; seconds and device-seconds to the millisecond."""
    rows = []
    for row in table.rows:
        cost = {
            name: None if value is None else round(value, 3)
            for name, value in asdict(row.cost).items()
        }
        columns = {}
        for name, column in row.columns.items():
            gap = difference_object(column.difference)
            columns[name] = {"score": estimate_object(column.score), "minus_vanilla": gap}
        names = ("method", "step", "units", "hardware")
        rows.append(
            {**{name: getattr(row, name) for name in names}, "cost": cost, "columns": columns}
        )
        rows[-1] |= {"why_not": row.why_not} if row.why_not else {}
    return {"setup": table.setup, "measure": table.measure, "amount": table.amount, "rows": rows}


def _row_object(row: RowEvidence) -> dict[str, Any]:
    fields = (
        "setup",
        "method",
        "knobs",
        "step",
        "units",
        "seeds",
        "candidates",
        "eligible",
        "complete",
        "k",
    )
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
        "responses": {name: estimate_object(column.responses.get(name)) for name in RESPONSES},
    }
