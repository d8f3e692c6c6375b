"""The full-screen view: tabs over one sweep, which a thread reads again and again."""

from __future__ import annotations

import threading
import time
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import ContentSwitcher, DataTable, Footer, Input, Static, Tab, Tabs

from analysis.table.model import Table
from orchestrator.commands.display import progress_bar, progress_mark, sweep_line
from orchestrator.experiment.reading import from_here
from orchestrator.records.rundir import RunReader
from orchestrator.selection.study import Study
from orchestrator.sheet import MARK_STYLES
from orchestrator.view.curves_pane import CurvesPane
from orchestrator.view.leaderboard_pane import LeaderboardPane
from orchestrator.view.reading import Progress, SweepReader
from orchestrator.view.rollouts_pane import RolloutsPane
from orchestrator.view.samples_pane import SamplesPane
from orchestrator.view.unit_screen import UnitScreen
from orchestrator.view.units_pane import UnitsPane

LEADERBOARD, UNITS, CURVES = "leaderboard", "units", "curves"
SAMPLES, ROLLOUTS = "samples", "rollouts"
OF_TABS = ("tab", "search", "read", "leave_search", "quit")  # actions of the tabs' own keys
TAB = "tab-"  # before the name of a pane, in the id of its tab
TITLES = {  # of the tabs, whose numbers are the keys
    LEADERBOARD: "1 Scores",
    UNITS: "2 Units",
    CURVES: "3 Curves",
    SAMPLES: "4 Samples",
    ROLLOUTS: "5 Rollouts",
}
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


Pane = LeaderboardPane | UnitsPane | CurvesPane | SamplesPane | RolloutsPane


class ViewApp(App[None]):
    """Shows one sweep until the user leaves; it writes nothing but the cache of earlier looks."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", f"tab('{LEADERBOARD}')", show=False),
        Binding("2", f"tab('{UNITS}')", show=False),
        Binding("3", f"tab('{CURVES}')", show=False),
        Binding("4", f"tab('{SAMPLES}')", show=False),
        Binding("5", f"tab('{ROLLOUTS}')", show=False),
        Binding("slash", "search", "Search"),
        Binding("r", "read", "Read"),
        Binding("escape", "leave_search", "Clear", show=False),
        Binding("q", "quit", "Quit"),
    ]
    CSS = """
    #headline { height: 2; padding: 0 1; background: $panel; }
    #search { dock: bottom; display: none; margin-bottom: 1; height: 1; border: none; }
    Screen { overflow: hidden; }
    ContentSwitcher { height: 1fr; }
    """

    def __init__(self, study: Study):
        super().__init__()
        self._study = study
        self._progress: Progress | None = None
        # Widgets belong to the thread of the app, so the reader's thread sends it messages.
        self._reader = SweepReader(
            study,
            lambda progress: self.post_message(ProgressRead(progress)),
            lambda table, problem: self.post_message(TableRead(table, problem)),
        )
        # A daemon: a reading that outlasts ENDING_S does not keep the process alive.
        self._thread = threading.Thread(target=self._read, daemon=True, name="reading")

    def compose(self) -> ComposeResult:
        yield Static(id="headline", markup=False)
        tabs = [Tab(title, id=f"{TAB}{pane}") for pane, title in TITLES.items()]
        yield Tabs(*tabs)
        with ContentSwitcher(initial=LEADERBOARD):
            yield LeaderboardPane(id=LEADERBOARD)
            yield UnitsPane(id=UNITS)
            yield CurvesPane(id=CURVES)
            yield SamplesPane(id=SAMPLES)
            yield RolloutsPane(id=ROLLOUTS)
        yield Input(placeholder="search", id="search")
        yield Footer()

    def on_mount(self) -> None:
        self.title = f"trb view {self._study.experiment.name}"
        self.query_one("#headline", Static).update(headline(self._study, None))
        self._thread.start()

    def on_unmount(self) -> None:
        self._reader.end()
        self._thread.join(ENDING_S)

    # --- what the thread hands over ---

    def on_progress_read(self, message: ProgressRead) -> None:
        if self._is_leaving:
            return
        self._progress = message.progress
        self._main.query_one("#headline", Static).update(headline(self._study, message.progress))
        for pane in (UnitsPane, CurvesPane, SamplesPane, RolloutsPane):
            self._main.query_one(pane).show(message.progress)
        if isinstance(self.screen, UnitScreen):
            self.screen.show(message.progress)

    def on_table_read(self, message: TableRead) -> None:
        if self._is_leaving:
            return
        self._main.query_one(LeaderboardPane).show(message.table, message.problem)
        for pane in (CurvesPane, SamplesPane, RolloutsPane):
            self._main.query_one(pane).show_table(message.table)

    def on_reading_failed(self, message: ReadingFailed) -> None:
        # Raised here, it ends the app and is printed; in the thread the screen would cover it.
        raise message.error

    def _read(self) -> None:
        try:
            self._reader.run()
        except Exception as error:
            self.post_message(ReadingFailed(error))

    # --- what the user does ---

    def on_units_pane_unit_opened(self, message: UnitsPane.UnitOpened) -> None:
        if self._progress is not None:
            run = RunReader(self._study.runs, message.unit_id)
            self.push_screen(UnitScreen(run, self._progress))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter on a method leads to its units."""
        # All tables send this event; the pane of the units answers its own.
        if event.data_table.id == "method-rows" and event.row_key.value is not None:
            words = self._main.query_one("#search", Input)
            words.value = self._main.query_one(LeaderboardPane).words_for(event.row_key.value)
            words.display = True
            self.action_tab(UNITS)

    def on_tabs_tab_activated(self, event: Tabs.TabActivated) -> None:
        if event.tab.id is not None:
            self._switcher.current = event.tab.id.removeprefix(TAB)
            self._search_pane()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "search":
            self._search_pane()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self._pane().focus_first()

    def action_tab(self, tab: str) -> None:
        """Show a tab."""
        self._main.query_one(Tabs).active = f"{TAB}{tab}"

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
        self._pane().focus_first()

    def action_read(self) -> None:
        """Read the run directories now."""
        self._reader.read_now()

    def _search_pane(self) -> None:
        """Apply the words of the search to the active tab, and let keys reach its rows unless the
        user still types.
        """
        pane, words = self._pane(), self._main.query_one("#search", Input)
        # Curves have no rows to leave out.
        if not isinstance(pane, CurvesPane):
            pane.search(words.value)
        if not words.has_focus:
            pane.focus_first()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Over another screen, such as a unit's, only its own keys and those of every screen act."""
        return action not in OF_TABS or self.screen is self._main

    @property
    def _is_leaving(self) -> bool:
        """Whether the widgets are gone: the last reading may arrive while the view ends."""
        return not self.is_running or self._main.query_one_optional("#headline") is None

    @property
    def _main(self) -> Screen[None]:
        """The screen with the tabs, which stays below the others."""
        # `query_one` of the app would search the top screen, which may be a unit's.
        return self.screen_stack[0]

    @property
    def _switcher(self) -> ContentSwitcher:
        return self._main.query_one(ContentSwitcher)

    def _pane(self) -> Pane:
        """The content of the active tab."""
        pane = self._switcher.visible_content
        assert isinstance(pane, Pane)
        return pane


def headline(study: Study, progress: Progress | None) -> Text:
    """The experiment with its bar and runs folder, then the state of the sweep."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(study.experiment.name, "bold")
    if progress is None:
        text.append(f" · {from_here(study.runs)}", "dim")
        return text.append("\nReading run directories…")
    overview = progress.overview
    done = progress.steps
    of = sum(s.steps for s in overview.units)
    if of:
        bar = progress_bar(done, of, BAR)
        text.append(f" {bar}", MARK_STYLES[progress_mark(done, of)])
        text.append(f" {done} of {of} steps")
    clock = time.strftime("%H:%M:%S", time.localtime(progress.read_at))
    text.append(f" · {from_here(study.runs)}", "dim")
    return text.append(f"\n{sweep_line(overview)} · read {clock}")
