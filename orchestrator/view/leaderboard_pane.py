"""The leaderboard on the screen: a table of methods, and what stands behind the one chosen there."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.events import Resize
from textual.widgets import DataTable, Static

from analysis.labels import BASE
from analysis.table.evidence_formats import GAP, P
from analysis.table.model import Table
from orchestrator.sheet import Cell, Sheet
from orchestrator.view.leaderboard import IntervalAxis, Placing, benchmark_texts, placings
from orchestrator.view.live_table import PADDING, SCROLLBAR, LiveTable
from orchestrator.view.searching import holds_words

NEEDED: Sequence[str] = ("Method", "Avg", GAP, "Interval", P)
# The others, in this order, and the characters of the drawn intervals that must have room first.
LEAST_AXIS, MIDDLE_AXIS, WIDEST_AXIS = 13, 27, 41
WHERE_ROOM = {"Seeds": LEAST_AXIS, "Step": LEAST_AXIS, "Setting": MIDDLE_AXIS}


class LeaderboardPane(Vertical):
    """The methods by score; columns are left out where the screen has no room for them."""

    DEFAULT_CSS = """
    LeaderboardPane VerticalScroll {
        height: auto; max-height: 40%; border-top: solid $primary; padding: 0 1;
        scrollbar-size: 1 1;
    }
    """

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._table: Table | None = None
        self._placings: dict[str, Placing] = {}
        self._words = ""

    def compose(self) -> ComposeResult:
        yield LiveTable(id="method-rows")
        with VerticalScroll():
            yield Static("Reading run directories…", id="evidence", markup=False)

    def show(self, table: Table | None, problem: str) -> None:
        """Show a table, or the `problem` for which there is none."""
        if table is None:
            self.query_one("#evidence", Static).update(Text(problem, "red"))
            return
        self._table = table
        self._placings = {placing.key: placing for placing in placings(table)}
        self._fill()

    def focus_first(self) -> None:
        """Let keys reach the rows."""
        self.query_one(LiveTable).focus()

    def search(self, words: str) -> None:
        """Show only methods that hold all of these words."""
        self._words = words
        self._fill()

    def words_for(self, key: str) -> str:
        """Words that find the units of the method with this key, and the method here."""
        placing = self._placings[key]
        # The id of the untrained student's unit names no method.
        return placing.label if placing.method == BASE else placing.unit_prefix

    def on_resize(self, _: Resize) -> None:
        self._fill()

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        self._describe()

    def _fill(self) -> None:
        if self._table is None:
            return
        shown: dict[str, Placing] = {}
        for key, placing in self._placings.items():
            if holds_words(f"{placing.unit_prefix} {placing.label}", self._words):
                shown[key] = placing
        rows = {key: self._cells(placing) for key, placing in shown.items()}
        headings = self._headings(rows)
        taken = _width(headings, rows)
        room = self.size.width - taken - PADDING - SCROLLBAR
        axis = None
        if room >= LEAST_AXIS:
            gaps = []
            for placing in shown.values():
                # The untrained student is so far below all others that the axis would end with it.
                if placing.difference is not None and placing.method != BASE:
                    gaps.append(placing.difference)
            axis = IntervalAxis.around(gaps, min(room, WIDEST_AXIS))
        beside_limits = headings.index("Interval") + 1
        cells = {}
        for key, placing in shown.items():
            row = [rows[key][heading] for heading in headings]
            if axis is not None:
                row.insert(beside_limits, Cell(axis.draw(placing.difference)))
            cells[key] = row
        titles = list(headings)
        if axis is not None:
            titles.insert(beside_limits, axis.heading())
        left = [0]
        for place, title in enumerate(titles):
            if title == "Setting" or title not in headings:
                left.append(place)
        self.query_one(LiveTable).show(titles, cells, left)
        self._describe()

    def _cells(self, placing: Placing) -> dict[str, Cell]:
        assert self._table is not None
        cells = {heading: Cell(text) for heading, text in placing.cells().items()}
        if len(self._table.places()) > 1:
            cells["Method"] = Cell(f"{placing.setup} {placing.label}")
        difference = placing.difference
        if difference is not None and difference.shown:
            mark = "good" if difference.estimate.value > 0 else "bad"
            for heading in (GAP, "Interval", P):
                cells[heading] = Cell(cells[heading].text, mark=mark)
        return cells

    def _headings(self, rows: dict[str, dict[str, Cell]]) -> list[str]:
        """The columns that fit, the confirmed score among them where a method has one."""
        headings = [*NEEDED]
        if any(row["Confirmed"].text for row in rows.values()):
            headings.insert(2, "Confirmed")
        for heading, axis in WHERE_ROOM.items():
            wider = [*headings, heading]
            if _width(wider, rows) + axis + PADDING + SCROLLBAR <= self.size.width:
                headings = wider
        return headings

    def _describe(self) -> None:
        """Say what the row under the cursor rests on."""
        table, key = self._table, self.query_one(LiveTable).selected
        if table is None or key is None:
            return
        placing, text = self._placings[key], Text()
        title = f"{placing.label}, {table.title(placing.setup)}"
        text.append(title, "bold")
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
        lines += table.notes[:1] if table.notes and table.notes[0].startswith("partial") else ()
        for line in lines:
            text.append(f"\n{line}")
        self.query_one("#evidence", Static).update(text)


def _width(headings: list[str], rows: dict[str, dict[str, Cell]]) -> int:
    """Characters of the columns, with the blanks around them."""
    lines = []
    for row in rows.values():
        lines.append([row[heading] for heading in headings])
    widths = Sheet(headings, lines).widths()
    return sum(widths) + PADDING * len(widths)
