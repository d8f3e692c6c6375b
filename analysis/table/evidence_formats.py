"""The evidence behind a results table as text cells, Markdown, comments and plain objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Literal, TypeVar

from analysis.costs import hours_or_minutes
from analysis.facts.evidence import (
    ONE_RUN,
    ConfirmedRow,
    CostRow,
    CostTable,
    Difference,
    Estimate,
    Facts,
    MeanDifference,
    RowEvidence,
)
from analysis.facts.split_half import SPLITS
from analysis.facts.uncertainty import CONFIDENCE, REPLICATES
from analysis.labels import AVERAGE, method_label, order_methods
from analysis.numbers import p_text, signed, tenths_text
from analysis.table.captions import UNEQUAL, explanation
from orchestrator.sheet import Cell, Sheet, to_markdown

AnyRow = TypeVar("AnyRow", RowEvidence, ConfirmedRow, MeanDifference, CostRow)
OneSetup = TypeVar("OneSetup", RowEvidence, ConfirmedRow)
ESCAPES = str.maketrans({ONE_RUN: f"\\{ONE_RUN}"})  # of Markdown
PROBLEMS_ONLY = " problems only"

# Headings of the selected checkpoints, in this order.
METHOD, SCORE, SPLIT_HALF, FRESH, LEFT_OUT = "Method", "Avg", "Split-half", "Fresh", "Left-out"
GAP, LIMITS, P = "− Vanilla", f"{100 * CONFIDENCE:g} % interval", "p"
OF, SEEDS, STEP, SETTING = "Of", "Seeds", "Step", "Setting"
# The others stand where a row has them.
ALWAYS = (METHOD, SCORE, SPLIT_HALF, FRESH, OF, SEEDS, STEP, SETTING)
AHEAD = "Ahead in"
CONFIRMED, EXPLORED, LEAD = "Confirmed", "Explored", "Lead"
AT = "Avg at "  # a cost follows
TRAINED = "Seconds"
COST_NUMBERS = {
    TRAINED: "seconds",
    "Student tokens": "student_tokens",
    "Teacher scored": "teacher_scored",
    "Teacher decoded": "teacher_decoded",
    "Supervised": "supervised_updates",
    "Updates": "updates",
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
BlockKind = Literal["selected", "responses", "confirmed", "across", "cost"]
TITLES: Mapping[BlockKind, str] = {
    "selected": "",
    "responses": "What pass@1 hides",
    "confirmed": "Confirmed on seeds that took no part in choosing",
    "across": "Confirmed, the mean over all setups",
    "cost": "Cost of training up to the selected step, and scores at equal cost",
}
LEFT = (METHOD, SETTING)  # the others are numbers


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


def blocks(evidence: Facts | None) -> list[EvidenceBlock]:
    """The selected checkpoints of each setup with their responses, the confirmed ones, the costs."""
    if evidence is None:
        return []
    found = []
    for setup, rows in by_setup(evidence.rows).items():
        # Without vanilla nothing is compared, and without several seeds nothing has a p-value;
        # other columns stand.
        sheet = sheet_of(map(_selected_cells, rows), ALWAYS)
        found.append(EvidenceBlock(setup, "selected", sheet))
        if any(row.columns[AVERAGE].responses for row in rows):
            sheet = sheet_of(response_cells(row, AVERAGE) for row in rows)
            found.append(EvidenceBlock(setup, "responses", sheet))
    for setup, rows in by_setup(evidence.confirmed).items():
        found.append(EvidenceBlock(setup, "confirmed", sheet_of(map(_confirmed_cells, rows))))
    if evidence.across:
        sheet = sheet_of(map(_across_cells, in_order(evidence.across)))
        found.append(EvidenceBlock("", "across", sheet))
    for table in evidence.costs:
        sheet = sheet_of(_cost_cells(table, row) for row in in_order(table.rows))
        found.append(EvidenceBlock(table.setup, "cost", sheet))
    return found


def in_order(rows: Iterable[AnyRow]) -> list[AnyRow]:
    """The rows with their methods in the order of the table."""
    rows = list(rows)
    order = order_methods(row.method for row in rows)
    return sorted(rows, key=lambda row: order.index(row.method))


def by_setup(rows: Iterable[OneSetup]) -> dict[str, list[OneSetup]]:
    """The rows of each setup, methods in the order of the table."""
    groups: dict[str, list[OneSetup]] = {}
    for row in in_order(rows):
        groups.setdefault(row.setup, []).append(row)
    return groups


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
            of_row.append(Cell(row[name], mark="faint" if PROBLEMS_ONLY in row[name] else None))
        cells.append(of_row)
    return Sheet(headings, cells, [place for place, name in enumerate(headings) if name in LEFT])


def _selected_cells(row: RowEvidence) -> dict[str, str]:
    column = row.columns[AVERAGE]
    return {
        METHOD: method_label(row.method),
        SCORE: score_text(column.score),
        SPLIT_HALF: number_text(column.split_half),
        FRESH: number_text(column.fresh and column.fresh.value),
        LEFT_OUT: number_text(column.left_out),
        **gap_cells(column.difference),
        OF: str(row.candidates),
        SEEDS: str(row.seeds) if row.seeds else "",
        STEP: str(row.step),
        SETTING: row.setting,
    }


def response_cells(row: RowEvidence, column: str) -> dict[str, str]:
    """A text for each number of the responses, by its heading; empty where it is missing."""
    cells = {METHOD: method_label(row.method)}
    for name, heading in RESPONSES.items():
        shown = f"{heading}{row.k}" if heading in (PASS, MAJ) else heading
        cells[shown] = score_text(row.columns[column].responses.get(name))
    return cells


def _confirmed_cells(row: ConfirmedRow) -> dict[str, str]:
    column = row.columns.get(AVERAGE)
    return {
        METHOD: method_label(row.method),
        CONFIRMED: score_text(column and column.score),
        **gap_cells(column and column.difference),
        EXPLORED: number_text(column and column.explored),
        LEAD: signed(column.lead) if column else "",
        SEEDS: str(len(row.units)) if row.complete else f"{len(row.units)} of {row.wanted}",
        STEP: str(row.step),
        SETTING: row.setting,
    }


def _across_cells(row: MeanDifference) -> dict[str, str]:
    return {
        METHOD: method_label(row.method),
        **gap_cells(row.difference),
        AHEAD: f"{row.ahead} of {row.setups}",
        SEEDS: str(row.seeds),
    }


def _cost_cells(table: CostTable, row: CostRow) -> dict[str, str]:
    column, seconds = row.columns.get(AVERAGE), row.cost.device_seconds
    time = "" if seconds is None else hours_or_minutes(seconds, table.on_gpus)
    cells = {
        METHOD: method_label(row.method),
        f"{AT}{table.text}": score_text(column.score) if column else row.why_not,
        **gap_cells(column and column.difference),
        "GPU-hours" if table.on_gpus else "Core-min": time,
    }
    for heading, name in COST_NUMBERS.items():
        value = getattr(row.cost, name)
        decimals = 1 if heading == TRAINED else 0
        cells[heading] = "" if value is None else f"{value:,.{decimals}f}"
    return cells


def score_text(score: Estimate | None) -> str:
    """`86.4 ±1.5`; empty where the score is missing."""
    return f"{tenths_text(score.value)} ±{score.reach}" if score else ""


def number_text(value: Fraction | float | None) -> str:
    """A number with one decimal; empty where it is missing."""
    return "" if value is None else tenths_text(value)


def gap_cells(gap: Difference | None) -> dict[str, str]:
    """Difference, interval and p by their headings; empty where there is no difference."""
    if gap is None:
        return {GAP: "", LIMITS: "", P: ""}
    return {GAP: gap_text(gap), LIMITS: limits_text(gap), P: tested_text(gap)}


def gap_text(gap: Difference) -> str:
    """A difference: `+7.5 (1 seed)`, or `+7.5` where its interval is over seeds."""
    text = signed(gap.estimate.value)
    if gap.estimate.over == "seeds":
        return text
    caveats = {0: "no seeds", 1: "1 seed"}
    return f"{text} ({caveats.get(min(gap.runs), 'equal seeds')})"


def tested_text(gap: Difference) -> str:
    """The p-value of a difference, or `not tested` where several seeds would have one."""
    unequal = gap.chosen_from is not None and gap.estimate.over == "seeds"
    return UNEQUAL if unequal else p_text(gap.p_value)


def limits_text(gap: Difference) -> str:
    """`[+1.2, +7.0]`; an interval that is not over seeds: `[+4.6, +10.4] problems only`."""
    within = gap.estimate.interval
    text = f"[{signed(within.low)}, {signed(within.high)}]"
    return text + PROBLEMS_ONLY if gap.estimate.over == "problems" else text


def markdown_blocks(evidence: Facts, title: Callable[[str], str]) -> list[str]:
    """Lines of one table for each setup, then the explanation."""
    lines: list[str] = []
    several = len(by_setup(evidence.rows)) > 1
    for block in blocks(evidence):
        heading = block.heading(title(block.setup) if several and block.setup else "")
        lines += ["", f"**{heading}**"] if heading else []
        lines += ["", *to_markdown(block.sheet, ESCAPES)]
    return [*lines, "", " ".join(explanation(evidence)).translate(ESCAPES)] if lines else []


def comment_lines(evidence: Facts) -> Iterator[str]:
    """A line for each row, then the explanation, a line for each sentence."""
    for block in blocks(evidence):
        for method, *cells in block.sheet.rows:
            parts = []
            for name, cell in zip(block.sheet.headings[1:], cells, strict=True):
                if cell.text:
                    parts.append(cell.text if name == SCORE else f"{name} {cell.text}")
            kind = "" if block.kind == "selected" else f" {block.kind}"
            where = f"{block.setup} " if block.setup else ""
            yield f"{where}{method.text}{kind}: {', '.join(parts)}"
    yield from explanation(evidence)


def to_object(evidence: Facts | None) -> dict[str, Any]:
    """The evidence in the JSON form; scores in percent, missing numbers null."""
    document: dict[str, Any] = {
        "evidence": [],
        "costs": [],
        "benchmarks": [],
        "bootstrap": None,
        "seed_spread": {},
        "caption": [],
    }
    if evidence is None:
        return document
    for of_setup in by_setup(evidence.rows).values():
        document["evidence"] += map(_row_object, of_setup)
    for (setup, column), spread in evidence.spreads.items():
        document["seed_spread"].setdefault(setup, {})[column] = spread and {
            "standard_deviation": round(spread.deviation, 4),
            "degrees_of_freedom": spread.freedom,
        }
    if evidence.confirmed:
        document["confirmed"] = [_confirmed_object(row) for row in evidence.confirmed]
    if evidence.across:
        document["across_setups"] = [_across_object(row) for row in evidence.across]
    return document | {
        "costs": [_cost_object(table) for table in evidence.costs],
        "benchmarks": [asdict(source) for source in evidence.benchmarks],
        "bootstrap": {"confidence": CONFIDENCE, "replicates": REPLICATES, "splits": SPLITS},
        "caption": explanation(evidence),
    }


def estimate_object(estimate: Estimate | None) -> dict[str, Any] | None:
    """Value, and the interval with its limits to the decimals that a bootstrap can hold."""
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
    if difference is None:
        return None
    found = estimate_object(difference.estimate) or {}
    found["p_value"] = _rounded(difference.p_value)
    if difference.adjusted > 1 and difference.holm is not None:
        found |= {"p_value_holm": _rounded(difference.holm), "corrected_for": difference.adjusted}
    if difference.chosen_from is not None:
        found["chosen_from"] = list(difference.chosen_from)
    return found


def _rounded(value: float | None, decimals: int = 4) -> float | None:
    return None if value is None else round(value, decimals)


def _values(row: object, names: str) -> dict[str, Any]:
    """The values of some attributes, which are named in a text."""
    return {name: getattr(row, name) for name in names.split()}


def _row_object(row: RowEvidence) -> dict[str, Any]:
    columns = {}
    for name, column in row.columns.items():
        responses = {key: estimate_object(column.responses.get(key)) for key in RESPONSES}
        columns[name] = _values(column, "problems samples n") | {
            "score": estimate_object(column.score),
            "split_half": _rounded(column.split_half),
            "fresh": estimate_object(column.fresh),
            "left_out": _rounded(column.left_out),
            "minus_vanilla": difference_object(column.difference),
            "responses": responses,
        }
    names = "setup method knobs step units seeds candidates eligible complete k"
    return _values(row, names) | {"spread": _rounded(row.spread), "columns": columns}


def _confirmed_object(row: ConfirmedRow) -> dict[str, Any]:
    columns = {}
    for name, column in row.columns.items():
        columns[name] = {
            "score": estimate_object(column.score),
            "explored": float(column.explored),
            "lead": float(column.lead),
            "minus_vanilla": difference_object(column.difference),
        }
    return _values(row, "setup method knobs step units wanted") | {"columns": columns}


def _across_object(row: MeanDifference) -> dict[str, Any]:
    numbers = _values(row, "method setups ahead seeds")
    return numbers | {"minus_vanilla": difference_object(row.difference)}


def _cost_object(table: CostTable) -> dict[str, Any]:
    """A setup's methods at equal cost; seconds and device-seconds to the millisecond."""
    rows = []
    for row in table.rows:
        columns = {}
        for name, column in row.columns.items():
            gap = difference_object(column.difference)
            columns[name] = {"score": estimate_object(column.score), "minus_vanilla": gap}
        cost = {name: _rounded(value, 3) for name, value in asdict(row.cost).items()}
        rows.append(_values(row, "method step units hardware") | {"cost": cost, "columns": columns})
        if row.why_not:
            rows[-1]["why_not"] = row.why_not
    return _values(table, "setup measure amount") | {"rows": rows}
