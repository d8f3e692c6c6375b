"""The results table, and what its averages rest on."""

from __future__ import annotations

from analysis.evidence import ColumnEvidence, Evidence, RowEvidence
from analysis.evidence_formats import EXPLANATION, by_setup, signed
from analysis.labels import AVERAGE, method_label
from analysis.report.html import Html, bullets, element, join, paragraph, section, table
from analysis.report.texts import limits, p_text, signed_limits
from analysis.table import Cell, Table, tenths_text
from analysis.uncertainty import REPLICATES

HEADINGS = (
    *("Method", "Setting", "Step", "Of", "Score", "95 % interval", "Split-half"),
    *("Fresh samples", "− vanilla", "p"),
)
P_VALUE = (
    f"p: two-sided, twice the smaller share of {REPLICATES} paired bootstrap replicates of the difference on either "
    "side of zero; not corrected for the number of methods."
)


def scores_section(results: Table) -> Html:
    """Two tables for each setup, the explanation and the notes."""
    setups = list(dict.fromkeys(column.setup for column in results.columns))
    parts = [
        join([element("h3", results.title(setup)), _scores(results, setup), _rest(results, setup)]) for setup in setups
    ]
    notes = [EXPLANATION, P_VALUE, "Bold: best of the column; underlined: second. The untrained student is not ranked."]
    return section(
        "Results", "results", *parts, *(paragraph(note, class_="note") for note in notes), bullets(results.notes)
    )


def _scores(results: Table, setup: str) -> Html:
    places = [(index, column) for index, column in enumerate(results.columns) if column.setup == setup]
    rows = [
        [
            row.label,
            *(_cell(row.cells[index], _known(results.evidence, setup, row.method, c.benchmark)) for index, c in places),
        ]
        for row in results.rows
    ]
    return table(
        "pass@1 (%), ± the reach of its 95 % interval", ["Method", *(column.label for _, column in places)], rows
    )


def _known(evidence: Evidence | None, setup: str, method: str, benchmark: str) -> ColumnEvidence | None:
    row = evidence.find(setup, method) if evidence else None
    return row.columns[benchmark] if row else None


def _cell(cell: Cell, known: ColumnEvidence | None) -> str:
    if not cell.text:
        return ""
    shown = {"best": element("b", cell.text), "second": element("u", cell.text), None: cell.text}[cell.mark]
    spread = element("small", f" ±{tenths_text(known.score.margin)}") if known else Html()
    return join([shown, spread])


def _rest(results: Table, setup: str) -> Html:
    """The selected checkpoints with what selecting and chance may have added to them."""
    groups = dict(by_setup(results.evidence)) if results.evidence else {}
    rows = [_evidence_row(row) for row in groups.get(setup, [])]
    if not rows:
        return paragraph("No checkpoint has been evaluated on all benchmarks yet.")
    return table("Selected checkpoints, Avg (%)", HEADINGS, rows, texts=("Setting",))


def _evidence_row(row: RowEvidence) -> list[str]:
    column = row.columns[AVERAGE]
    fresh, gap = column.fresh, column.difference
    return [
        method_label(row.method),
        row.setting or "no knobs",
        str(row.step),
        _pool(row),
        tenths_text(column.score.value),
        limits(column.score),
        "" if column.split_half is None else tenths_text(column.split_half),
        f"{tenths_text(fresh.value)} {limits(fresh)}" if fresh else "",
        f"{signed(gap.estimate.value)} {signed_limits(gap.estimate)}" if gap else "",
        p_text(gap.p_value) if gap else "",
    ]


def _pool(row: RowEvidence) -> str:
    """Scored checkpoints, and how many of them had the samples to be chosen from, where not all had."""
    text = str(row.candidates)
    return text if row.eligible == row.candidates else f"{text}, {row.eligible} eligible"
