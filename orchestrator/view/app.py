"""The full-screen view: tabs over one sweep, which a thread reads again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import ContentSwitcher, DataTable, Footer, Input, Static, Tab, Tabs

from analysis.table.model import Table
from orchestrator.commands.display import steps_words, sweep_line
from orchestrator.commands.unit_rows import progress_bar
from orchestrator.experiment.reading import from_here
from orchestrator.records.rundir import RunReader
from orchestrator.selection.study import Study
from orchestrator.view.curves import CurvesPane
from orchestrator.view.leaderboard import LeaderboardPane
from orchestrator.view.panes import Pane
from orchestrator.view.reading import Progress, SweepReader
from orchestrator.view.rollouts import RolloutsPane
from orchestrator.view.samples import SamplesPane
from orchestrator.view.units import UnitScreen, UnitsPane

LEADERBOARD, UNITS, CURVES = "leaderboard", "units", "curves"
SAMPLES, ROLLOUTS = "samples", "rollouts"
OF_TABS = ("tab", "search", "read", "leave_search", "quit")  # actions of the tabs' own keys
TAB = "tab-"  # before the name of a pane, in the id of its tab
TABS: dict[str, tuple[str, type[Pane]]] = {  # titles, whose numbers are the keys, and contents
    LEADERBOARD: ("1 Scores", LeaderboardPane),
    UNITS: ("2 Units", UnitsPane),
    CURVES: ("3 Curves", CurvesPane),
    SAMPLES: ("4 Samples", SamplesPane),
    ROLLOUTS: ("5 Rollouts", RolloutsPane),
}
BAR = 12  # characters of the sweep's bar
ENDING_S = 1.0  # for a reading that goes on when the user leaves


class FromThread(Message):
    """A call that the thread which reads hands to the thread of the app."""

    def __init__(self, call: Callable[[], None]):
        super().__init__()
        self.call = call


class ViewApp(App[None]):
    """Shows one sweep until the user leaves; it writes nothing but the cache of earlier looks."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(title[0], f"tab('{tab}')", show=False) for tab, (title, _) in TABS.items()),
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
            lambda progress: self._hand_over(partial(self._show_progress, progress)),
            lambda table, problem: self._hand_over(partial(self._show_table, table, problem)),
        )
        # A daemon: a reading that outlasts ENDING_S does not keep the process alive.
        self._thread = threading.Thread(target=self._read, daemon=True, name="reading")

    def compose(self) -> ComposeResult:
        yield Static(id="headline", markup=False)
        yield Tabs(*(Tab(title, id=f"{TAB}{tab}") for tab, (title, _) in TABS.items()))
        with ContentSwitcher(initial=LEADERBOARD):
            for tab, (_, pane) in TABS.items():
                yield pane(id=tab)
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

    def on_from_thread(self, message: FromThread) -> None:
        message.call()

    @property
    def _is_leaving(self) -> bool:
        """Whether the widgets are gone: the last reading may arrive while the view ends."""
        return not self.is_running or self._main.query_one_optional("#headline") is None

    def _show_progress(self, progress: Progress) -> None:
        if self._is_leaving:
            return
        self._progress = progress
        self._main.query_one("#headline", Static).update(headline(self._study, progress))
        for pane in self._main.query(Pane):
            pane.show(progress)
        if isinstance(self.screen, UnitScreen):
            self.screen.show(progress)

    def _show_table(self, table: Table | None, problem: str) -> None:
        if self._is_leaving:
            return
        for pane in self._main.query(Pane):
            pane.show_table(table, problem)

    def _fail(self, error: Exception) -> None:
        # Raised here, it ends the app and is printed; in the thread the screen would cover it.
        raise error

    def _hand_over(self, call: Callable[[], None]) -> None:
        self.post_message(FromThread(call))

    def _read(self) -> None:
        try:
            self._reader.run()
        except Exception as error:
            self._hand_over(partial(self._fail, error))

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
        pane.search(words.value)
        if not words.has_focus:
            pane.focus_first()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Over another screen, such as a unit's, only its own keys and those of every screen act."""
        return action not in OF_TABS or self.screen is self._main

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
    bar = progress_bar(overview.steps, overview.all_steps, BAR)
    if bar.text:
        text.append(" ").append_text(bar.rich()).append(f" {steps_words(overview)}")
    clock = time.strftime("%H:%M:%S", time.localtime(progress.read_at))
    text.append(f" · {from_here(study.runs)}", "dim")
    return text.append(f"\n{sweep_line(overview)} · read {clock}")
