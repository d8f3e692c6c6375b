"""The columns of the evidence: a row here is a column in every form of the table.

Terminal, Markdown, LaTeX, the report, CSV, JSON, Parquet, frames and trackers go over these lists,
so a column is added, renamed or explained in this file alone. A number that is not among the facts
yet is a field in `facts.evidence` as well, computed in `facts.assess`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from analysis.facts.evidence import (
    ConfirmedRow,
    CostRow,
    Difference,
    Estimate,
    Facts,
    HeldOutRow,
    MeanDifference,
    RowEvidence,
    hours_or_minutes,
)
from analysis.facts.intervals import CONFIDENCE
from analysis.labels import AVERAGE, order_methods
from analysis.numbers import signed, tenths_text
from orchestrator.records.log import FIRST_BUCKET

Value: TypeAlias = Estimate | Difference | Fraction | float | int | str | None
EvidenceRow: TypeAlias = RowEvidence | ConfirmedRow | MeanDifference | CostRow | HeldOutRow
BlockKind = Literal["selected", "responses", "held_out", "confirmed", "across", "cost"]
# Kinds of values: percent is in the unit of the table's scores in a CSV file.
NumberKind = Literal["percent", "number", "count", "text"]

# Whether the value is an `Estimate` with limits, a `Difference` that may be tested, or a lone number.
Holds = Literal["plain", "estimate", "difference"]

METHOD, SETTING, STEP, SEEDS = "Method", "Setting", "Step", "Seeds"
GAP, LIMITS, P = "− Vanilla", f"{100 * CONFIDENCE:g} % interval", "p"  # those of a difference


@dataclass(frozen=True)
class EvidenceColumn:
    """A column of the evidence.

    `name` is its name for programs and `heading` that for people, empty where only programs have
    it; `read` gives its value in a column of the results table, such as `avg`. `caption` has
    lines that explain it under the table. A column that is `always` there stands though no row has a value. `text`
    replaces the usual text of the value.
    """

    name: str
    heading: str
    read: Callable[[Any, str], Value]
    unit: NumberKind = "percent"
    holds: Holds = "plain"
    caption: str = ""
    always: bool = False
    text: Callable[[Any], str] | None = None
    decimals: int = 1  # of an estimate or a difference as people see it

    def fields(self) -> dict[str, NumberKind]:
        """The names that programs know its numbers by, with their units."""
        if self.holds == "plain":
            return {self.name: self.unit}
        limits = "ci" if self.name == "score" else self.name
        names = (self.name, f"{limits}_low", f"{limits}_high")
        found: dict[str, NumberKind] = dict.fromkeys(names, self.unit)
        if self.holds == "difference":
            found.update(dict.fromkeys((f"{self.name}_over", "outcome"), "text"))
            found.update(dict.fromkeys(("p_value", "p_value_holm"), "number"))
            found["corrected_for"] = "count"
            found["p_value_permutation"] = "number"
        return found

    def values(self, row: Any, key: str) -> dict[str, Any]:
        """The numbers of a row by the names of `fields`; None where one is missing."""
        value, numbers = self.read(row, key), list[Any]()
        gap = value if isinstance(value, Difference) else None
        estimate = gap.estimate if gap else value
        if isinstance(estimate, Estimate):
            numbers = [float(estimate.value), estimate.interval.low, estimate.interval.high]
        else:
            numbers = [float(estimate) if isinstance(estimate, Fraction) else estimate]
        if gap is not None:
            numbers += [gap.estimate.over, gap.outcome, gap.p_value, gap.holm]
            numbers += [gap.corrected_for, gap.permutation]
        return dict.fromkeys(self.fields()) | dict(zip(self.fields(), numbers, strict=False))


def _of_row(
    name: str, heading: str = "", unit: NumberKind = "count", **more: Any
) -> EvidenceColumn:
    """An attribute of the row."""
    return EvidenceColumn(name, heading, lambda row, _: getattr(row, name), unit, **more)


def _of_column(
    name: str,
    heading: str = "",
    unit: NumberKind = "percent",
    attribute: str = "",
    holds: Holds = "plain",
    **more: Any,
) -> EvidenceColumn:
    """An attribute of the row's evidence in a column; None where it has none."""

    def read(row: Any, key: str) -> Value:
        column = row.columns.get(key)
        return getattr(column, attribute or name) if column is not None else None

    return EvidenceColumn(name, heading, read, unit, holds, **more)


def _difference() -> EvidenceColumn:
    return _of_column("minus_vanilla", GAP, attribute="difference", holds="difference")


def _collapses() -> tuple[EvidenceColumn, ...]:
    """How many runs end below the untrained student, from which step on, and Fisher's p-value."""

    def text(row: RowEvidence | ConfirmedRow) -> str:
        return row.collapse.text if row.collapse is not None and row.collapse.collapsed else ""

    def of(name: str, attribute: str, unit: NumberKind = "count", **more: Any) -> EvidenceColumn:
        def read(row: RowEvidence | ConfirmedRow, _: str) -> Value:
            return getattr(row.collapse, attribute) if row.collapse is not None else None

        return EvidenceColumn(name, more.pop("heading", ""), read, unit, **more)

    return (
        of("collapsed", "collapsed", heading="Collapsed", text=text),
        of("collapsed_of", "runs"),
        of("collapse_step", "first"),
        of("collapse_p_value", "p_value", "number"),
    )


def _response(name: str, heading: str, unit: NumberKind, caption: str = "") -> EvidenceColumn:
    """A number of the responses."""

    def read(row: RowEvidence, key: str) -> Value:
        return row.columns[key].responses.get(name)

    return EvidenceColumn(name, heading, read, unit, "estimate", caption)


def _held_out(name: str, heading: str, decimals: int = 3, caption: str = "") -> EvidenceColumn:
    """A number of a checkpoint's responses to held-out prompts."""

    def text(row: HeldOutRow) -> str:
        value = getattr(row, name)
        return "" if value is None else f"{value:.{decimals}f}"

    def read(row: HeldOutRow, _: str) -> Value:
        return getattr(row, name)

    return EvidenceColumn(name, heading, read, "number", "plain", caption, text=text)


def _cost(name: str, heading: str, decimals: int = 0) -> EvidenceColumn:
    """A number of the cost of training."""

    def text(row: CostRow) -> str:
        value = getattr(row.cost, name)
        return "" if value is None else f"{value:,.{decimals}f}"

    return EvidenceColumn(
        name, heading, lambda row, _: getattr(row.cost, name), "number", text=text
    )


def _device_time(row: CostRow) -> str:
    seconds = row.cost.device_seconds
    return "" if seconds is None else hours_or_minutes(seconds, row.on_gpus)


def _fresh(row: RowEvidence) -> str:
    fresh = row.columns[AVERAGE].fresh
    return tenths_text(fresh.value) if fresh else ""


def _confirming(row: ConfirmedRow) -> str:
    return str(len(row.units)) if row.complete else f"{len(row.units)} of {row.wanted}"


SELECTED = (
    _of_column("score", "Avg", holds="estimate", always=True),
    _of_column(
        "split_half",
        "Split-half",
        caption="Split-half: selected on half of the problems, scored on the other half.",
        always=True,
    ),
    _of_column(
        "fresh",
        "Fresh",
        holds="estimate",
        caption="Fresh: the selected checkpoint on new samples, which took no part in selecting it.",
        always=True,
        text=_fresh,
    ),
    _of_column(
        "left_out",
        "Left-out",
        caption="Left-out: chosen on all seeds but one, scored on that one; not tested, since the "
        "choices share seeds.",
    ),
    _difference(),
    *_collapses(),
    _of_row(
        "candidates",
        "Of",
        caption="Of: evaluated checkpoints of the method, of which the best is shown.",
        always=True,
    ),
    EvidenceColumn(
        "seeds",
        SEEDS,
        lambda row, _: len(row.units),
        "count",
        caption="Seeds: training runs that a score is the mean of.",
        always=True,
        text=lambda row: str(row.seeds) if row.seeds else "",
    ),
    _of_row("step", STEP, always=True),
    _of_row("setting", SETTING, "text", always=True),
    EvidenceColumn("interval_over", "", lambda row, key: row.columns[key].score.over, "text"),
    _of_column("problems", unit="count"),
    _of_column("samples", unit="count"),
    _of_column("n", unit="count"),
    _of_row("k"),
    _of_row("eligible"),
    _of_row("spread", unit="percent"),
    EvidenceColumn("units", "", lambda row, _: " ".join(row.units), "text"),
)
RESPONSES = (
    _response(
        "pass_at_k",
        "pass@{k}",
        "percent",
        "pass@{k}: one of {k} samples is right; exact over all choices of {k} samples.",
    ),
    _response(
        "maj_at_k",
        "maj@{k}",
        "percent",
        "maj@{k}: the most frequent of {k} answers is right; exact over all choices, too.",
    ),
    _response(
        "truncated",
        "Truncated",
        "percent",
        "Truncated, No answer: shares of the samples in per cent.",
    ),
    _response("no_answer", "No answer", "percent"),
    _response(
        "tokens_right",
        "Tokens right",
        "number",
        "Tokens right, Tokens wrong: mean length of right and of wrong responses.",
    ),
    _response("tokens_wrong", "Tokens wrong", "number"),
)
NATS = 3  # decimals of a KL
HELD_OUT = (
    EvidenceColumn(
        "kl",
        "KL(p‖q)",
        lambda row, _: row.kl,
        "number",
        "estimate",
        "KL(p‖q): of the checkpoint's student from the teacher, nats a token, on its own responses "
        "to training prompts that no trial takes; 0 is the teacher. ± over seeds holds for these "
        "prompts, ±* is over the prompts of one run.",
        decimals=NATS,
    ),
    EvidenceColumn(
        "minus_vanilla",
        GAP,
        lambda row, _: row.difference,
        "number",
        "difference",
        decimals=NATS,
    ),
    _held_out(
        "first_kl",
        f"First {FIRST_BUCKET}",
        caption=f"First {FIRST_BUCKET}: at these tokens of a response.",
    ),
    _held_out("start", "At start", caption="At start: before the first step."),
    _held_out("sequence_kl", "A response", 1, "A response: KL of whole responses."),
    _held_out(
        "tail_student", "Tail p", 4, "Tail p, Tail q: mass outside of the student's top k ids."
    ),
    _held_out("tail_teacher", "Tail q", 4),
    _held_out("student_entropy", "Entropy p"),
    _held_out("teacher_entropy", "Entropy q"),
    _of_row("prompts", "Prompts"),
    _of_row("step", STEP),
    _of_row("setting", unit="text"),
)
CONFIRMED = (
    _of_column(
        "score",
        "Confirmed",
        holds="estimate",
        caption="Confirmed: the chosen setting and step, trained on seeds that took no part in "
        "choosing, on new samples.",
    ),
    _difference(),
    *_collapses(),
    _of_column("explored", "Explored"),
    _of_column(
        "lead",
        "Lead",
        caption="Lead: explored − confirmed, the luck of the choice.",
        text=lambda row: signed(row.columns[AVERAGE].lead) if row.columns else "",
    ),
    EvidenceColumn("seeds", SEEDS, lambda row, _: len(row.units), "count", text=_confirming),
    _of_row("wanted"),
    _of_row("step", STEP),
    _of_row("setting", SETTING, "text"),
)
ACROSS = (
    EvidenceColumn(
        "minus_vanilla",
        GAP,
        lambda row, _: row.difference,
        holds="difference",
        caption="The mean over all setups: a seed counts once, with the mean of its runs. p and the "
        "interval hold for these setups.",
    ),
    EvidenceColumn(
        "elsewhere_low",
        "Setups like these",
        lambda row, _: row.elsewhere and row.elsewhere.low,
        text=lambda row: row.elsewhere.text if row.elsewhere else "",
        caption="Setups like these: 95 % interval of the mean over all of their kind, by how much "
        "these differ.",
    ),
    EvidenceColumn("elsewhere_high", "", lambda row, _: row.elsewhere and row.elsewhere.high),
    _of_row("ahead", "Ahead in", text=lambda row: f"{row.ahead} of {row.setups}"),
    _of_row("setups"),
    _of_row("seeds", SEEDS),
)
COST = (
    _of_column(
        "at_cost",
        "Avg at {at}",
        attribute="score",
        holds="estimate",
        caption="Cost: of the training steps and the supervised stage before them, without start, "
        "evaluation and saving; a mean over seeds.\nEqual cost: the most that all methods have "
        "reached; scores are interpolated between evaluated checkpoints.",
    ),
    _difference(),
    EvidenceColumn(
        "device_seconds",
        "{device_time}",
        lambda row, _: row.cost.device_seconds,
        "number",
        text=_device_time,
    ),
    _cost("seconds", "Seconds", 1),
    _cost("student_tokens", "Student tokens"),
    _cost("teacher_scored", "Teacher scored"),
    _cost("teacher_decoded", "Teacher decoded"),
    _cost("supervised_updates", "Supervised"),
    _cost("updates", "Updates"),
    _of_row("step"),
    EvidenceColumn("hardware", "", lambda row, _: "; ".join(row.hardware), "text"),
    _of_row("measure", unit="text"),
    _of_row("amount", unit="number"),
    _of_row("why_not", unit="text"),
)
COLUMNS: Mapping[BlockKind, Sequence[EvidenceColumn]] = {
    "selected": SELECTED,
    "responses": RESPONSES,
    "held_out": HELD_OUT,
    "confirmed": CONFIRMED,
    "across": ACROSS,
    "cost": COST,
}
TITLES: Mapping[BlockKind, str] = {
    "selected": "",
    "responses": "What pass@1 hides",
    "held_out": "Distance from the teacher on held-out prompts",
    "confirmed": "Confirmed on seeds that took no part in choosing",
    "across": "Confirmed, the mean over all setups",
    "cost": "Cost of training up to the selected step, and scores at equal cost",
}


def rows_of(known: Facts, kind: BlockKind) -> list[Any]:
    """The rows of a block, setup by setup, methods in the order of the table."""
    rows: Mapping[BlockKind, Sequence[EvidenceRow]] = {
        "selected": known.rows,
        "responses": [row for row in known.rows if row.columns[AVERAGE].responses],
        "held_out": known.held_out,
        "confirmed": known.confirmed,
        "across": known.across,
        "cost": known.costs,
    }
    order = order_methods(row.method for row in rows[kind])
    setups = list(known.experiment.setups)

    def place(row: EvidenceRow) -> tuple[int, int]:
        return setups.index(row.setup) if row.setup else 0, order.index(row.method)

    return sorted(rows[kind], key=place)


def records(known: Facts, kind: BlockKind) -> list[dict[str, Any]]:
    """A record for each row of a block and each column of the table, of plain numbers and texts.

    Scores are in percent and not rounded, times in seconds; a number that is missing is None.
    """
    found = []
    for row in rows_of(known, kind):
        # A mean over setups has no other column, and a cost is known before scores at it are.
        alone = [AVERAGE] if kind in ("across", "cost", "held_out") else []
        for key in getattr(row, "columns", None) or alone:
            values: dict[str, Any] = {"method": row.method, "setup": row.setup, "benchmark": key}
            for column in COLUMNS[kind]:
                values |= column.values(row, key)
            found.append(values)
    return found


def units_of(*kinds: BlockKind) -> dict[str, NumberKind]:
    """Name → unit of all numbers that `records` of these kinds have."""
    found: dict[str, NumberKind] = {}
    for kind in kinds:
        for column in COLUMNS[kind]:
            found |= column.fields()
    return found


def captions(known: Facts, kind: BlockKind) -> list[str]:
    """The sentences that explain the columns of a block which some row has."""
    rows, sentences = rows_of(known, kind), []
    ks = {row.k for row in known.rows}
    k = str(ks.pop()) if len(ks) == 1 else "k"
    for column in COLUMNS[kind] if rows else ():
        has_value = any(column.read(row, AVERAGE) is not None for row in rows)
        if column.caption and (column.always or has_value):
            sentences += column.caption.format(k=k).splitlines()
    return sentences
