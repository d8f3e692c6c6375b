"""The tab of scores: the numbers of the results table, the best method of each setup first.

Behind the chosen method stands what its number rests on.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import DataTable

from analysis.facts.evidence import (
    ONE_RUN,
    ConfirmedRow,
    Difference,
    Estimate,
    GapAxis,
    RowEvidence,
)
from analysis.labels import AVERAGE, BASE
from analysis.numbers import signed
from analysis.table.evidence_formats import GAP, LIMITS, PROBLEMS_ONLY, P, gap_cells, score_text
from analysis.table.model import Table
from orchestrator.commands.unit_rows import fitted, taken
from orchestrator.experiment.methods import REFERENCE
from orchestrator.sheet import Cell
from orchestrator.view.panes import BESIDE, LiveTable, Pane, below

METHOD, AVG, CONFIRMED, INTERVAL, AXIS = "Method", "Avg", "Confirmed", "Interval", ""
SEEDS, STEP, SETTING = "Seeds", "Step", "Setting"
LEAST_AXIS, WIDEST_AXIS = 13, 41  # characters of the drawn intervals
ZERO, BLANK = "│", " "
# Line and point by what the interval is over: one run's is drawn lightly, since it is too narrow.
STYLES = {"seeds": ("─", "●"), "problems": ("╌", "○")}
BELOW, ABOVE = "◀", "▶"  # in place of the point, for a difference beyond the axis


class LeaderboardPane(Pane):
    """The methods by score; columns are left out where the screen has no room for them."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._placings: dict[str, Placing] = {}

    def compose(self) -> ComposeResult:
        yield LiveTable(id="method-rows")
        yield below("Reading run directories…", "evidence")

    def show_table(self, table: Table | None, problem: str) -> None:
        """Show a table, or the `problem` for which there is none."""
        super().show_table(table, problem)
        if table is None:
            self.say(Text(problem, "red"))
            return
        self._placings = {placing.key: placing for placing in placings(table)}
        self.fill()

    def words_for(self, key: str) -> str:
        """Words that find the units of the method with this key, and the method here."""
        placing = self._placings[key]
        # The id of the untrained student's unit names no method.
        return placing.label if placing.method == BASE else placing.unit_prefix

    def fill(self) -> None:
        """Show the methods that hold the searched words, with an axis of intervals if it fits."""
        if self.table is None or not self.size.width:  # not laid out yet
            return
        shown, several = dict[str, Placing](), len(self.table.places()) > 1
        for key, placing in self._placings.items():
            if self.passes(f"{placing.unit_prefix} {placing.label}"):
                shown[key] = placing
        rows = {key: placing.row(several) for key, placing in shown.items()}
        columns = _columns(list(rows.values()), self.size.width - BESIDE)
        titles: dict[str, int | None] = {}
        # The untrained student is so far below all others that the axis would end with it.
        trained = [each.difference for each in shown.values() if each.method != BASE]
        gaps = [difference for difference in trained if difference is not None]
        axis = IntervalAxis(GapAxis.around(gaps), columns.get(AXIS, LEAST_AXIS))
        for heading, width in columns.items():
            titles[heading if heading != AXIS else axis.heading()] = width
        cells = {}
        for key, placing in shown.items():
            row = rows[key] | {AXIS: Cell(axis.draw(placing.difference))}
            cells[key] = [row[heading] for heading in columns]
        self.query_one(LiveTable).show(titles, cells, (METHOD, SETTING, axis.heading()))
        self._describe()

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        self._describe()

    def _describe(self) -> None:
        """Say what the row under the cursor rests on."""
        table, key = self.table, self.query_one(LiveTable).selected
        if table is None or key is None:
            return
        placing = self._placings[key]
        text = Text.assemble((f"{placing.label}, {table.title(placing.setup)}", "bold"))
        if placing.chosen is not None:
            chosen = placing.chosen
            setting = f" {chosen.setting}" if chosen.setting else ""
            text.append(f" ·{setting} step {chosen.step}, best of {chosen.candidates} checkpoints")
        lines = benchmark_texts(table, placing)
        if table.facts is None:
            lines.append("Computing intervals…")
        for sentence in table.verdict.sentences:
            # A sentence with a difference concerns one method, the others the whole table.
            if f"{placing.label} − " in sentence or " − " not in sentence:
                lines.append(sentence)
        lines += table.verdict.caveats
        lines += table.notes[:1] if table.notes and table.notes[0].startswith("partial") else ()
        for line in lines:
            text.append(f"\n{line}")
        self.say(text)


def _columns(rows: list[dict[str, Cell]], width: int) -> dict[str, int]:
    """Heading → characters of the columns that fit; the axis takes the room that is left."""
    columns = {}
    for heading in (METHOD, AVG, CONFIRMED, GAP, INTERVAL, AXIS, P, SEEDS, STEP, SETTING):
        texts = [row[heading].text for row in rows if heading != AXIS]
        if heading != CONFIRMED or any(texts):
            columns[heading] = max(map(len, [heading, *texts]))
    columns[AXIS] = LEAST_AXIS
    columns = fitted(columns, width, [SETTING, STEP, SEEDS, AXIS], [METHOD])
    if AXIS in columns:
        spare = width - taken(columns)
        columns[AXIS] = min(WIDEST_AXIS, LEAST_AXIS + max(0, spare))
    return columns


# --- rows ---


@dataclass(frozen=True)
class Placing:
    """One method in one setup.

    `average` is its exact score in percent and `lead` the same minus vanilla's. `chosen` is the
    evidence of its selected checkpoint and `confirmed` that of the runs which confirm the choice.
    All are None before their samples are there, evidence also until it is computed.
    """

    setup: str
    method: str
    label: str
    average: Cell
    lead: Fraction | None
    chosen: RowEvidence | None
    confirmed: ConfirmedRow | None

    @property
    def key(self) -> str:
        """A name of the row that stays the same while the sweep goes on."""
        return f"{self.setup}/{self.method}"

    @property
    def unit_prefix(self) -> str:
        """The beginning of the ids of its units."""
        return f"{self.setup}-{self.method}-"

    @property
    def score(self) -> Estimate | None:
        """The average by which the checkpoint was chosen."""
        return self.chosen.columns[AVERAGE].score if self.chosen else None

    @property
    def confirmed_score(self) -> Estimate | None:
        """The average over the confirming runs that are evaluated."""
        column = self.confirmed.columns.get(AVERAGE) if self.confirmed else None
        return column.score if column else None

    @property
    def difference(self) -> Difference | None:
        """The average minus vanilla's, over the confirming runs where some are evaluated."""
        column = self.confirmed.columns.get(AVERAGE) if self.confirmed else None
        if column is None and self.chosen is not None:
            column = self.chosen.columns[AVERAGE]
        return column.difference if column else None

    @property
    def height(self) -> float:
        """The score that places it; methods without one come last."""
        if self.confirmed_score is not None:
            return float(self.confirmed_score.value)
        # Below every score in percent.
        return -1.0 if self.average.value is None else float(self.average.value)

    def row(self, several: bool = False) -> dict[str, Cell]:
        """The cells of the row, by heading; empty where a number is missing.

        The setup precedes the label if there are `several`.
        """
        gap = gap_cells(self.difference)
        if self.chosen is None and self.lead is not None:
            gap[GAP] = signed(self.lead)
        mark = None
        if self.difference is not None and self.difference.shown:
            mark = "good" if self.difference.estimate.value > 0 else "bad"
        limits = gap[LIMITS].replace(PROBLEMS_ONLY, ONE_RUN)
        return {
            METHOD: Cell(f"{self.setup} {self.label}" if several else self.label),
            AVG: Cell(score_text(self.score) or self.average.text),
            CONFIRMED: Cell(score_text(self.confirmed_score)),
            # The interval says what it is over.
            GAP: Cell(gap[GAP].partition(" ")[0], mark=mark),
            INTERVAL: Cell(limits, mark=mark),
            P: Cell(gap[P], mark=mark),
            SEEDS: Cell(str(self.chosen.seeds or "") if self.chosen else ""),
            STEP: Cell(str(self.chosen.step) if self.chosen else ""),
            SETTING: Cell(self.chosen.setting if self.chosen else ""),
        }


def placings(table: Table) -> list[Placing]:
    """Every method of every setup: setup by setup, from the highest average to the lowest."""
    found = []
    for setup, places in table.places().items():
        averages = {row.method: row.cells[places[0]] for row in table.rows}
        reference = averages[REFERENCE].value if REFERENCE in averages else None
        confirmed = {}
        for each in table.facts.confirmed if table.facts else ():
            if each.setup == setup:
                confirmed[each.method] = each
        rows = []
        for row in table.rows:
            chosen = table.facts.find(setup, row.method) if table.facts else None
            lead, average = None, averages[row.method]
            if average.value is not None and reference is not None and row.method != REFERENCE:
                lead = average.value - reference
            known = confirmed.get(row.method)
            rows.append(Placing(setup, row.method, row.label, average, lead, chosen, known))
        found += sorted(rows, key=lambda placing: placing.height, reverse=True)
    return found


def benchmark_texts(table: Table, placing: Placing) -> list[str]:
    """`Short sums 89.6 ±0.6, − Vanilla +0.4 [−1.0, +1.8]` for each benchmark of the chosen
    checkpoint.
    """
    texts = []
    for column in table.columns:
        if column.setup != placing.setup or placing.chosen is None:
            continue
        if column.benchmark == AVERAGE:
            continue
        known = placing.chosen.columns[column.benchmark]
        text = f"{column.label} {score_text(known.score)}"
        gap = gap_cells(known.difference)
        texts.append(f"{text}, {GAP} {gap[GAP]} {gap[LIMITS]}" if gap[GAP] else text)
    return texts


@dataclass(frozen=True)
class IntervalAxis:
    """An axis of differences over `width` characters."""

    axis: GapAxis
    width: int

    def place(self, value: float) -> int:
        """The character at which a value lies; the first or last one for a value beyond."""
        return round(self.axis.share(value) * (self.width - 1))

    def heading(self) -> str:
        """`−3.2       +4.1`: the two ends of the axis."""
        low, high = signed(self.axis.low), signed(self.axis.high)
        return low + " " * (self.width - len(low) - len(high)) + high

    def draw(self, difference: Difference | None) -> str:
        """`  ──●─│──`: an interval with its difference, beside the line of zero."""
        letters = [BLANK] * self.width
        # Zero comes first, so that an interval over it shows where they cross.
        letters[self.place(0.0)] = ZERO
        if difference is None:
            return "".join(letters)
        interval, value = difference.estimate.interval, float(difference.estimate.value)
        line, dot = STYLES[difference.estimate.over]
        for place in range(self.place(interval.low), self.place(interval.high) + 1):
            letters[place] = line if letters[place] == BLANK else "┼"
        point = BELOW if value < self.axis.low else ABOVE if value > self.axis.high else dot
        letters[self.place(value)] = point
        return "".join(letters)
