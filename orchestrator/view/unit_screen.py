"""One unit on the screen: its state, its error and its log, which grows while the unit works."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Input, Log, Static

from orchestrator.commands.display import percent
from orchestrator.records.files import Damaged
from orchestrator.records.rundir import RunReader
from orchestrator.view.reading import Progress
from orchestrator.view.searching import holds_words
from orchestrator.view.units import STATE, UnitRow, unit_rows

AGAIN_S = 2.0  # between two looks at the log
MOST_LETTERS = 400_000  # of a log; the beginning of a longer one is left out


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
        for row in unit_rows(progress.overview):
            if row.id == self._run.unit_id:
                self.query_one("#facts", Static).update(facts(row))
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
        lines = []
        for line in self._text.splitlines():
            if holds_words(line, self._words):
                lines.append(line)
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


def facts(row: UnitRow) -> Text:
    """The unit's name, state and best checkpoint, then its id."""
    status = row.status
    text = Text.assemble((row.name, "bold"), " · ")
    text.append_text(row.cells[STATE].rich())
    if status.steps:
        text.append(f" · step {status.step} of {status.steps}")
    if status.score is not None:
        text.append(f" · best {percent(status.score)} % at step {status.best_step}")
    text.append(f"\n{status.id}", "dim")
    return text
