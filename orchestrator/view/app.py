"""The full-screen view: tabs over one sweep, which a thread reads again and again."""

from __future__ import annotations

import threading
import time

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent, TabPane

from analysis.table.model import Table
from orchestrator.commands.display import progress_bar, progress_mark, sweep_line
from orchestrator.records.rundir import RunReader
from orchestrator.selection.study import Study
from orchestrator.sheet import MARK_STYLES
from orchestrator.view.curves_pane import CurvesPane
from orchestrator.view.leaderboard_pane import LeaderboardPane
from orchestrator.view.reading import Progress, SweepReader
from orchestrator.view.unit_screen import UnitScreen
from orchestrator.view.units_pane import UnitsPane

LEADERBOARD, UNITS, CURVES = "leaderboard", "units", "curves"
OF_TABS = ("tab", "search", "read", "leave_search", "quit")  # actions of the tabs' own keys
BAR = 12  # characters of the sweep's bar
ENDING_S = 1.0  # for a reading that goes on when the user leaves


class ProgressRead(Message):
    """A reading of the units is there."""

    def __init__(self, progress: Progress):
        super().__init__()
        self.progress = progress


class TableRead(Message):
    """A results table is there, or the `problem` for which there is none."""

    def __init__(self, table: Table | None, problem: str):
        super().__init__()
        self.table, self.problem = table, problem


class ReadingFailed(Message):
    """The thread that reads ended in an error of the program."""

    def __init__(self, error: Exception):
        super().__init__()
        self.error = error


class ViewApp(App[None]):
    """Shows one sweep until the user leaves; it writes nothing but the cache of earlier looks."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS = (
        Binding("1", f"tab('{LEADERBOARD}')", "Scores"),
        Binding("2", f"tab('{UNITS}')", "Units"),
        Binding("3", f"tab('{CURVES}')", "Curves"),
        Binding("slash", "search", "Search"),
        Binding("r", "read", "Read now"),
        Binding("escape", "leave_search", "Clear", show=False),
        Binding("q", "quit", "Quit"),
    )
    CSS = """
    #headline { height: 2; padding: 0 1; background: $panel; }
    #search { dock: bottom; display: none; margin-bottom: 1; height: 1; border: none; }
    Screen { overflow: hidden; }
    TabbedContent { height: 1fr; }
    ContentSwitcher { height: 1fr; }
    TabPane { padding: 0; height: 1fr; }
    """

    def __init__(self, study: Study):
        super().__init__()
        self._study = study
        self._progress: Progress | None = None
        self._reader = SweepReader(
            study,
            lambda progress: self.post_message(ProgressRead(progress)),
            lambda table, problem: self.post_message(TableRead(table, problem)),
        )
        self._thread = threading.Thread(target=self._read, daemon=True, name="reading")

    def compose(self) -> ComposeResult:
        yield Static(id="headline", markup=False)
        with TabbedContent(initial=LEADERBOARD):
            with TabPane("Scores", id=LEADERBOARD):
                yield LeaderboardPane()
            with TabPane("Units", id=UNITS):
                yield UnitsPane()
            with TabPane("Curves", id=CURVES):
                yield CurvesPane()
        yield Input(placeholder="search", id="search")
        yield Footer()

    def on_mount(self) -> None:
        self.title = f"trb view {self._study.experiment.name}"
        self.query_one("#headline", Static).update(headline(self._study, None))
        self.query_one("#methods").focus()
        self._thread.start()

    def on_unmount(self) -> None:
        self._reader.end()
        self._thread.join(ENDING_S)

    # --- what the thread hands over ---

    def on_progress_read(self, message: ProgressRead) -> None:
        self._progress = message.progress
        self._main.query_one("#headline", Static).update(headline(self._study, message.progress))
        self._main.query_one(UnitsPane).show(message.progress)
        self._main.query_one(CurvesPane).show(message.progress)
        if isinstance(self.screen, UnitScreen):
            self.screen.show(message.progress)

    def on_table_read(self, message: TableRead) -> None:
        self._main.query_one(LeaderboardPane).show(message.table, message.problem)
        self._main.query_one(CurvesPane).show_table(message.table)

    def on_reading_failed(self, message: ReadingFailed) -> None:
        raise message.error

    def _read(self) -> None:
        try:
            self._reader.run()
        except Exception as error:
            self.post_message(ReadingFailed(error))

    # --- what the user does ---

    def on_units_pane_opened(self, message: UnitsPane.Opened) -> None:
        if self._progress is not None:
            run = RunReader(self._study.runs, message.unit_id)
            self.push_screen(UnitScreen(run, self._progress))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter on a method leads to its units."""
        if event.data_table.id == "methods" and event.row_key.value is not None:
            setup, method = event.row_key.value.split("/")
            self._main.query_one(UnitsPane).search(f"{setup}-{method}")
            self.action_tab(UNITS)

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        self._pane(event.pane).focus_first()

    def on_input_changed(self, event: Input.Changed) -> None:
        pane = self._pane()
        if event.input.id == "search" and isinstance(pane, LeaderboardPane | UnitsPane):
            pane.search(event.value)

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self._pane().focus_first()

    def action_tab(self, tab: str) -> None:
        """Show a tab."""
        self._main.query_one(TabbedContent).active = tab

    def action_search(self) -> None:
        """Let the user type words that the rows of this tab must hold."""
        words = self._main.query_one("#search", Input)
        words.display = True
        words.focus()

    def action_leave_search(self) -> None:
        """Show all rows again."""
        words = self._main.query_one("#search", Input)
        words.value = ""
        words.display = False
        self._main.query_one(LeaderboardPane).search("")
        self._main.query_one(UnitsPane).search("")
        self._pane().focus_first()

    def action_read(self) -> None:
        """Read the run directories now."""
        self._reader.read_now()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Over another screen, such as a unit's, only its own keys and those of every screen act."""
        return action not in OF_TABS or self.screen is self._main

    @property
    def _main(self) -> Screen[None]:
        """The screen with the tabs, which stays below the others."""
        return self.screen_stack[0]

    def _pane(self, tab: TabPane | None = None) -> LeaderboardPane | UnitsPane | CurvesPane:
        """The content of a tab, of the active one unless another is given."""
        tab = tab or self._main.query_one(TabbedContent).active_pane
        assert tab is not None
        (pane,) = tab.children
        assert isinstance(pane, LeaderboardPane | UnitsPane | CurvesPane)
        return pane


def headline(study: Study, progress: Progress | None) -> Text:
    """The experiment with its bar and runs folder, then the state of the sweep."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(study.experiment.name, "bold")
    if progress is None:
        text.append(f" · {study.runs}", "dim")
        return text.append("\nReading run directories…")
    overview = progress.overview
    done, of = sum(s.step for s in overview.units), sum(s.steps for s in overview.units)
    if of:
        bar = progress_bar(done, of, BAR)
        text.append(f" {bar}", MARK_STYLES[progress_mark(done, of)])
        text.append(f" {done} of {of} steps")
    clock = time.strftime("%H:%M:%S", time.localtime(progress.read_at))
    text.append(f" · {study.runs}", "dim")
    return text.append(f"\n{sweep_line(overview)} · read {clock}")
