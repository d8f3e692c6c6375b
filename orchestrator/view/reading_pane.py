"""The base of panes that read files of their own, beside what every reading of the sweep has."""

from __future__ import annotations

from textual.containers import Vertical

from analysis.table.model import Table
from orchestrator.view.reading import Progress


class ReadingPane(Vertical):
    """Reads only while it is on the screen, and only after something changed that it rests on.

    Texts and metrics of a sweep are many files; reading them for a hidden tab would take most of
    the time that the view may use.
    """

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._progress: Progress | None = None
        self._table: Table | None = None
        self._on_screen = False
        self._read_for: object = None

    def show(self, progress: Progress) -> None:
        """Take one reading of the units."""
        self._progress = progress
        self.read_if_changed()

    def show_table(self, table: Table | None) -> None:
        """Take the table that selects checkpoints; without one the earlier table stays."""
        self._table = table or self._table
        self.read_if_changed()

    def read_if_changed(self) -> None:
        """Begin to read unless the pane is hidden, or has read for the same before."""
        if not self._on_screen or self._progress is None:
            return
        basis = self.basis(self._progress)
        if basis is not None and basis != self._read_for:
            self._read_for = basis
            self.read(self._progress)

    def basis(self, progress: Progress) -> object:
        """A value that changes whenever the pane must read again; None while it cannot read yet."""
        raise NotImplementedError

    def read(self, progress: Progress) -> None:
        """Begin to read, on a thread of its own."""
        raise NotImplementedError

    def on_show(self) -> None:
        self._on_screen = True
        self.read_if_changed()

    def on_hide(self) -> None:
        self._on_screen = False
