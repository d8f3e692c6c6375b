"""The tab of units with the processes that work on them, and the screen of one unit with its log."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Log, Static

from orchestrator.commands.display import hours
from orchestrator.commands.unit_rows import (
    STATE,
    TEXTS,
    names,
    percent,
    state_cell,
    unit_columns,
    unit_rows,
)
from orchestrator.monitor.status import Overview
from orchestrator.monitor.unit_status import UnitStatus
from orchestrator.planning.numbers import counted
from orchestrator.records.files import Damaged
from orchestrator.records.rundir import RunReader
from orchestrator.view.panes import BESIDE, LiveTable, Pane, below, holds_words
from orchestrator.view.reading import Progress

AGAIN_S = 2.0  # between two looks at the log
MOST_LETTERS = 400_000  # of a log; the beginning of a longer one is left out


class UnitsPane(Pane):
    """A row for each unit; Enter or a click on the chosen one opens its log."""

    DEFAULT_CSS = "UnitsPane VerticalScroll { max-height: 30%; }"

    class UnitOpened(Message):
        """The user wants to see the unit with this id."""

        def __init__(self, unit_id: str):
            super().__init__()
            self.unit_id = unit_id

    def compose(self) -> ComposeResult:
        yield LiveTable(id="unit-rows")
        yield below("Reading run directories…", "processes")

    def show(self, progress: Progress) -> None:
        """Show the units and processes of one reading."""
        super().show(progress)
        self.fill()
        self.say(process_lines(progress))

    def fill(self) -> None:
        """Show the units that hold the searched words in name, id or state."""
        if self.progress is None or not self.size.width:  # not laid out yet
            return
        overview = self.progress.overview
        called, rows = names(overview.units), unit_rows(overview)
        # The columns stay where they are while the search leaves rows out.
        columns, shown = unit_columns(rows, self.size.width - BESIDE), {}
        for s in overview.units:
            row = rows[s.id]
            if self.passes(f"{called[s.id]} {s.id} {row[STATE].text} {s.state}"):
                shown[s.id] = [row[heading] for heading in columns]
        self.query_one(LiveTable).show(columns, shown, TEXTS)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.row_key.value is not None:
            self.post_message(self.UnitOpened(event.row_key.value))


def process_lines(progress: Progress) -> Text:
    """`2 processes hold 2 cores`, and a line for each of them."""
    overview = progress.overview
    processes, device, called = overview.processes, overview.device, names(overview.units)
    if not processes:
        idle = "No process works on this sweep."
        return Text(idle if not overview.driven else "A driver runs; no process works yet.", "dim")
    held = counted(sum(process.devices for process in processes), device)
    many = "es hold" if len(processes) > 1 else " holds"
    text = Text(f"{len(processes)} process{many} {held}")
    text.append(f" · {hours(overview.device_hours_spent)} {device}-hours spent")
    for process in processes:
        where = f"{device} {process.gpu}" if process.gpu else f"{process.devices:g} {device}"
        work = f"{process.work} {called[process.unit_id]}"
        work += "" if process.step is None else f", step {process.step}"
        holder = process.holder
        text.append(f"\n{holder.host} process {holder.pid}, {where}: {work}")
    return text


# --- one unit ---


class UnitScreen(Screen[None]):
    """Escape leads back; the log shows lines that hold the searched words, or all of them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "back", "Back"),
        Binding("slash", "search", "Search"),
        Binding("home,g", "log_end(False)", "Begin"),
        Binding("end,G", "log_end(True)", "End"),
    ]
    DEFAULT_CSS = """
    UnitScreen #facts { height: auto; padding: 0 1; background: $panel; }
    UnitScreen #failure { height: auto; max-height: 40%; padding: 0 1; color: $text-error; }
    UnitScreen Log { height: 1fr; border-top: solid $primary; }
    UnitScreen Input { dock: bottom; display: none; margin-bottom: 1; }
    """

    def __init__(self, run: RunReader, progress: Progress):
        super().__init__()
        self._run, self._progress = run, progress
        self._text = self._words = ""

    def compose(self) -> ComposeResult:
        yield Static(id="facts", markup=False)
        with VerticalScroll(id="failure"):
            yield Static(id="error", markup=False)
        yield Log(id="log", highlight=False)
        yield Input(placeholder="words of a line", id="words")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#failure").display = False
        self.query_one(Log).focus()
        self.show(self._progress)
        self.set_interval(AGAIN_S, self._read)

    def show(self, progress: Progress) -> None:
        """Show the unit's state as one reading of the sweep found it."""
        self._progress = progress
        for status in progress.overview.units:
            if status.id == self._run.unit_id:
                self.query_one("#facts", Static).update(facts(progress.overview, status))
        self._read()

    @work(thread=True, exclusive=True, group="log")
    def _read(self) -> None:
        text = (self._run.log_text() or "")[-MOST_LETTERS:]
        try:
            failure = "\n".join(filter(None, (self._run.error, self._run.traceback)))
        except Damaged as error:
            failure = str(error)
        self.app.call_from_thread(self._take, text, failure)

    def _take(self, text: str, failure: str) -> None:
        # The user may have gone back while the log was read.
        if not self.is_attached:
            return
        self.query_one("#failure").display = bool(failure)
        self.query_one("#error", Static).update(failure)
        if text != self._text:
            self._text = text
            self._fill()

    def _fill(self) -> None:
        log = self.query_one(Log)
        # The screen follows a growing log unless the user has scrolled up.
        at_end = log.is_vertical_scroll_end
        lines = [line for line in self._text.splitlines() if holds_words(line, self._words)]
        log.clear()
        log.write_lines(lines or ["no log yet" if not self._text else "no such line"], at_end)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._words = event.value
        self._fill()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self.query_one(Log).focus()

    def action_search(self) -> None:
        self.query_one(Input).display = True
        self.query_one(Input).focus()

    def action_log_end(self, end: bool) -> None:
        log = self.query_one(Log)
        if end:
            log.scroll_end(animate=False)
        else:
            log.scroll_home(animate=False)

    def action_back(self) -> None:
        words = self.query_one(Input)
        # The first Escape ends the search, the next one leaves the screen.
        if words.display:
            words.value = ""
            words.display = False
            self.query_one(Log).focus()
        else:
            self.app.pop_screen()


def facts(overview: Overview, status: UnitStatus) -> Text:
    """The unit's name, state and best checkpoint, then its id."""
    text = Text.assemble((names(overview.units)[status.id], "bold"), " · ")
    text.append_text(state_cell(status, overview.driven).rich())
    if status.steps:
        text.append(f" · step {status.step} of {status.steps}")
    if status.score is not None:
        text.append(f" · best {percent(status.score)} % at step {status.best_step}")
    return text.append(f"\n{status.id}", "dim")
