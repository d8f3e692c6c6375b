"""A table of rows with keys that changes in place: the cursor and the place on the screen stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text
from textual.widgets import DataTable

from orchestrator.sheet import Cell

PADDING, SCROLLBAR = 2, 1  # blanks around a cell, and characters of the bar beside the rows


class LiveTable(DataTable[Text]):
    """Shows rows by key; `show` changes only cells that differ from those on the screen."""

    DEFAULT_CSS = "LiveTable { scrollbar-size: 1 1; height: 1fr; }"

    def __init__(self, id: str) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True, id=id)
        self._headings: list[str] = []
        self._shown: dict[str, list[Cell]] = {}

    @property
    def selected(self) -> str | None:
        """The key of the row under the cursor; None without rows."""
        keys = list(self._shown)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else None

    def show(
        self,
        headings: Sequence[str],
        rows: Mapping[str, Sequence[Cell]],
        left: Sequence[int] = (0,),
    ) -> None:
        """Show the rows in their order; the columns at the places in `left` are set left."""
        new = {key: list(cells) for key, cells in rows.items()}
        if list(headings) == self._headings and list(new) == list(self._shown):
            self._update(new, left)
            return
        # `clear` takes the cursor and the scrolling back to the top, so both are kept here.
        before, place = self.selected, self.cursor_row
        top = self.scroll_offset.y
        if list(headings) != self._headings:
            self.clear(columns=True)
            self._headings = list(headings)
            for index, heading in enumerate(headings):
                justify = "left" if index in left else "right"
                self.add_column(Text(heading, justify=justify), key=str(index))
        else:
            self.clear()
        for key, cells in new.items():
            self.add_row(*(_text(cell, at in left) for at, cell in enumerate(cells)), key=key)
        self._shown = new
        if new:
            # A row that is gone leaves the cursor at its place.
            row = list(new).index(before) if before in new else min(place, len(new) - 1)
            self.move_cursor(row=max(0, row), animate=False, scroll=False)
            self.scroll_to(y=top, animate=False)

    def _update(self, new: dict[str, list[Cell]], left: Sequence[int]) -> None:
        for key, cells in new.items():
            for at, cell in enumerate(cells):
                if cell != self._shown[key][at]:
                    text = _text(cell, at in left)
                    self.update_cell(key, str(at), text, update_width=True)
        self._shown = new


def _text(cell: Cell, left: bool) -> Text:
    text = cell.rich()
    text.justify = "left" if left else "right"
    return text
