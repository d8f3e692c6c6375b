"""The units on the screen, and below them the processes that work on the sweep."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.events import Resize
from textual.message import Message
from textual.widgets import DataTable, Static

from orchestrator.commands.display import hours
from orchestrator.planning.numbers import counted
from orchestrator.view.live_table import PADDING, SCROLLBAR, LiveTable
from orchestrator.view.reading import Progress
from orchestrator.view.units import TEXTS, UnitRow, fitted, unit_rows


class UnitsPane(Vertical):
    """A row for each unit; Enter or a click on the chosen one opens its log."""

    DEFAULT_CSS = """
    UnitsPane VerticalScroll {
        height: auto; max-height: 30%; border-top: solid $primary; padding: 0 1;
        scrollbar-size: 1 1;
    }
    """

    class UnitOpened(Message):
        """The user wants to see the unit with this id."""

        def __init__(self, unit_id: str):
            super().__init__()
            self.unit_id = unit_id

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._rows: list[UnitRow] = []
        self._words = ""

    def compose(self) -> ComposeResult:
        yield LiveTable(id="unit-rows")
        with VerticalScroll():
            yield Static("Reading run directories…", id="processes", markup=False)

    def show(self, progress: Progress) -> None:
        """Show the units and processes of one reading."""
        self._rows = unit_rows(progress.overview)
        self._fill()
        self.query_one("#processes", Static).update(process_lines(progress))

    def focus_first(self) -> None:
        """Let keys reach the rows."""
        self.query_one(LiveTable).focus()

    def search(self, words: str) -> None:
        """Show only units that hold all of these words in name, id or state."""
        self._words = words
        self._fill()

    def _fill(self) -> None:
        # The columns stay where they are while the search leaves rows out.
        headings, cells = fitted(self._rows, self.size.width - SCROLLBAR, PADDING)
        shown = {row.id: cells[row.id] for row in self._rows if row.matches(self._words)}
        left = [place for place, heading in enumerate(headings) if heading in TEXTS]
        self.query_one(LiveTable).show(headings, shown, left)

    def on_resize(self, _: Resize) -> None:
        self._fill()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.row_key.value is not None:
            self.post_message(self.UnitOpened(event.row_key.value))


def process_lines(progress: Progress) -> Text:
    """`2 processes hold 2 cores`, and a line for each of them."""
    overview, processes = progress.overview, progress.processes
    device = overview.device
    if not processes:
        idle = "No process works on this sweep."
        return Text(idle if not overview.driven else "A driver runs; no process works yet.", "dim")
    held = counted(sum(process.devices for process in processes), device)
    many = "es hold" if len(processes) > 1 else " holds"
    text = Text(f"{len(processes)} process{many} {held}")
    text.append(f" · {hours(overview.device_hours_spent)} {device}-hours spent")
    for process in processes:
        where = f"{device} {process.gpu}" if process.gpu else f"{process.devices:g} {device}"
        text.append(f"\n{process.host} process {process.pid}, {where}: {process.work}")
    return text
