"""The parts that panes share: a table whose rows change in place, and when a pane reads files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text
from textual import work
from textual.containers import Vertical, VerticalScroll
from textual.events import Resize
from textual.widgets import DataTable, Static

from analysis.table.model import Table
from orchestrator.errors import UserError
from orchestrator.sheet import GAP, Cell
from orchestrator.view.reading import Progress

# Characters beside the columns that `unit_rows.fitted` counts: the last gap, and the bar.
BESIDE = GAP + 1


def holds_words(text: str, words: str) -> bool:
    """Whether `text` holds all of the `words`, which blanks part; parts of words count."""
    folded = text.casefold()
    return all(word in folded for word in words.casefold().split())


class LiveTable(DataTable[Text]):
    """Shows rows by key; `show` changes only cells that differ from those on the screen."""

    DEFAULT_CSS = "LiveTable { scrollbar-size: 1 1; height: 1fr; }"

    def __init__(self, id: str) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True, id=id)
        self._columns: Mapping[str, int | None] = {}
        self._shown: dict[str, list[Cell]] = {}

    @property
    def selected(self) -> str | None:
        """The key of the row under the cursor; None without rows."""
        keys = list(self._shown)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else None

    def show(
        self,
        columns: Mapping[str, int | None],
        rows: Mapping[str, Sequence[Cell]],
        left: Sequence[str],
    ) -> None:
        """Show the rows in their order under the headings of `columns`, those in `left` set left.

        A column has a number of characters, at which its cells break, or is as wide as they are.
        """
        new = {key: list(cells) for key, cells in rows.items()}
        same = list(columns.items()) == list(self._columns.items())
        if same and list(new) == list(self._shown):
            self._update(new, left)
            return
        # `clear` takes the cursor and the scrolling back to the top, so both are kept here.
        before, place = self.selected, self.cursor_row
        top = self.scroll_offset.y
        self.clear(columns=not same)
        if not same:
            self._columns = dict(columns)
            for index, (heading, width) in enumerate(columns.items()):
                justify = "left" if heading in left else "right"
                self.add_column(Text(heading, justify=justify), key=str(index), width=width)
        height = None if any(columns.values()) else 1  # None: as many lines as its cells break into
        for key, cells in new.items():
            self.add_row(*self._texts(cells, left), key=key, height=height)
        self._shown = new
        if new:
            # A row that is gone leaves the cursor at its place.
            row = list(new).index(before) if before in new else min(place, len(new) - 1)
            self.move_cursor(row=max(0, row), animate=False, scroll=False)
            self.scroll_to(y=top, animate=False)

    def _update(self, new: dict[str, list[Cell]], left: Sequence[str]) -> None:
        for key, cells in new.items():
            for at, text in enumerate(self._texts(cells, left)):
                if cells[at] != self._shown[key][at]:
                    self.update_cell(key, str(at), text, update_width=True)
        self._shown = new

    def _texts(self, cells: Sequence[Cell], left: Sequence[str]) -> list[Text]:
        texts = []
        for heading, cell in zip(self._columns, cells, strict=True):
            text = cell.rich()
            text.justify = "left" if heading in left else "right"
            texts.append(text)
        return texts


def below(text: str, id: str) -> VerticalScroll:
    """The part of a pane below its table, where `Pane.say` shows what is chosen there."""
    return VerticalScroll(Static(text, id=id, classes="below", markup=False))


class Pane(Vertical):
    """The content of a tab: it shows each reading of the sweep, and may read files of its own.

    It reads only while it is on the screen, and only after its `basis` has changed. Texts and
    metrics of a sweep are many files; reading them for a hidden tab would take most of the time
    that the view may use.
    """

    DEFAULT_CSS = """
    Pane VerticalScroll {
        height: auto; max-height: 40%; border-top: solid $primary; padding: 0 1;
        scrollbar-size: 1 1;
    }
    """
    FIRST = "LiveTable"  # the widget that takes the keys

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.progress: Progress | None = None
        self.table: Table | None = None
        self._words = ""
        self._on_screen = False
        self._read_for: object = None

    # --- what each pane has of its own ---

    def fill(self) -> None:
        """Show the rows that hold the searched words, for the present width."""

    def basis(self) -> tuple[Any, ...] | None:
        """A value that changes whenever the pane must read again; None while it has not to."""
        return None

    def read(self, progress: Progress, basis: tuple[Any, ...]) -> Any:
        """Read files, on a thread of its own; the result goes to `take`."""
        raise NotImplementedError

    def take(self, found: Any) -> None:
        """Show what was read."""

    # --- what all panes do ---

    def show(self, progress: Progress) -> None:
        """Take one reading of the units."""
        self.progress = progress
        self.read_if_changed()

    def show_table(self, table: Table | None, problem: str) -> None:
        """Take a results table; where there is none for a `problem` the earlier one stays."""
        self.table = table or self.table
        self.read_if_changed()

    def say(self, text: Text | str) -> None:
        """Show a text below the table."""
        for static in self.query(".below").results(Static):
            static.update(text)

    def search(self, words: str) -> None:
        """Show only rows that hold all of these words."""
        self._words = words
        self.fill()

    def passes(self, text: str) -> bool:
        """Whether a row with this text holds the searched words."""
        return holds_words(text, self._words)

    def focus_first(self) -> None:
        """Let keys reach the rows."""
        self.query(self.FIRST).first().focus()

    def read_if_changed(self) -> None:
        """Begin to read unless the pane is hidden, or has read for the same before."""
        if not self._on_screen or self.progress is None:
            return
        basis = self.basis()
        if basis is not None and basis != self._read_for:
            self._read_for = basis
            self._read(self.progress, basis)

    @work(thread=True, exclusive=True, group="read")
    def _read(self, progress: Progress, basis: tuple[Any, ...]) -> None:
        try:
            with progress.lock:
                found = self.read(progress, basis)
        except UserError as error:  # a damaged file
            self.app.call_from_thread(self.say, str(error))
            return
        self.app.call_from_thread(self.take, found)

    def on_show(self) -> None:
        self._on_screen = True
        self.read_if_changed()

    def on_hide(self) -> None:
        self._on_screen = False

    def on_resize(self, _: Resize) -> None:
        self.fill()
