"""The curves on the screen: one quantity over steps, for the methods that are chosen beside it."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Select, SelectionList
from textual.widgets.selection_list import Selection
from textual_plotext import PlotextPlot

from analysis.labels import BASE
from analysis.table.model import Table
from orchestrator.experiment.methods import PROPOSED, REFERENCE
from orchestrator.records.files import Damaged
from orchestrator.view.curves import SCORE, CurveReader, MethodCurve, Quantity, quantities
from orchestrator.view.leaderboard import placings
from orchestrator.view.reading import Progress
from orchestrator.view.reading_pane import ReadingPane

# On dark ground: the first seven are told apart with any colour vision (Okabe and Ito, 2008).
PALETTE = (
    (86, 180, 233),
    (230, 159, 0),
    (0, 158, 115),
    (240, 228, 66),
    (204, 121, 167),
    (213, 94, 0),
    (220, 220, 220),
    (136, 136, 221),
    (153, 221, 85),
    (255, 153, 153),
    (102, 221, 204),
    (187, 136, 85),
)
FEW = 5  # methods that are shown before the user chooses


class CurvesPane(ReadingPane):
    """Left and right change the quantity; the list beside the plot chooses the methods.

    A zoomed plot has the range of the second half of the steps, in which methods lie close.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        # With priority, since the list of methods takes these keys for itself.
        Binding("left", "another(-1)", "Previous", priority=True),
        Binding("right", "another(1)", "Next", priority=True),
        Binding("z", "zoom", "Zoom"),
    ]
    DEFAULT_CSS = """
    CurvesPane Select { margin: 0 1; }
    CurvesPane PlotextPlot { width: 1fr; }
    CurvesPane SelectionList { width: 26; height: 1fr; border: none; padding: 0; }
    """

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._quantities = {quantity.key: quantity for quantity in quantities()}
        self._reader = CurveReader()
        self._curves: list[MethodCurve] = []
        self._colours: dict[str, tuple[int, int, int]] = {}
        self._zoomed = False

    def compose(self) -> ComposeResult:
        options = [(quantity.title, key) for key, quantity in self._quantities.items()]
        yield Select(options, value=SCORE, allow_blank=False, compact=True)
        with Horizontal():
            yield PlotextPlot()
            yield SelectionList[str](compact=True)

    def focus_first(self) -> None:
        """Let keys reach the list of methods."""
        self.query_one(SelectionList).focus()

    def show_table(self, table: Table | None) -> None:
        """Take the table that selects the settings, and list its methods by score."""
        if table is not None:
            self._list_methods(table)
        super().show_table(table)

    def basis(self, progress: Progress) -> object:
        """The quantity, the steps that were taken, and the table."""
        return self.query_one(Select).value, progress.steps, self._table

    def read(self, progress: Progress) -> None:
        """Read the curves of the present quantity."""
        self._read_curves(progress, self._quantities[str(self.query_one(Select).value)])

    @work(thread=True, exclusive=True, group="curves")
    def _read_curves(self, progress: Progress, quantity: Quantity) -> None:
        evidence = self._table.facts if self._table else None
        try:
            with progress.lock:
                curves = self._reader.curves(progress.study, evidence, quantity)
        except Damaged:
            return  # the units name the damage
        self.app.call_from_thread(self._take, quantity, curves)

    def _take(self, quantity: Quantity, curves: list[MethodCurve]) -> None:
        # The user may have taken another quantity while this one was read.
        if self.query_one(Select).value == quantity.key:
            self._curves = curves
            self._draw()

    def _list_methods(self, table: Table) -> None:
        methods = self.query_one(SelectionList)
        # A sweep's methods stay the same, and so must what the user has chosen of them.
        if methods.option_count:
            return
        several = len(table.places()) > 1
        for number, placing in enumerate(placings(table)):
            if placing.method == BASE:
                continue
            colour = PALETTE[len(self._colours) % len(PALETTE)]
            self._colours[placing.key] = colour
            label = f"{placing.setup} {placing.label}" if several else placing.label
            prompt = Text.assemble(("━━ ", f"rgb{colour}".replace(" ", "")), label)
            first = placing.method in (PROPOSED, REFERENCE) or number < FEW
            methods.add_option(Selection(prompt, placing.key, first))

    def _draw(self) -> None:
        plot, late = self.query_one(PlotextPlot), list[float]()
        plot.plt.clear_figure()
        chosen = set(self.query_one(SelectionList).selected)
        for curve in self._curves:
            if curve.key in chosen:
                colour = self._colours.get(curve.key, PALETTE[-1])
                steps, values = list(curve.points), list(curve.points.values())
                plot.plt.plot(steps, values, marker="braille", color=colour)
                for step, value in curve.points.items():
                    late += [value] if step >= steps[-1] / 2 else []
        if self._zoomed and late:
            plot.plt.ylim(min(late), max(late))
        plot.plt.xlabel("optimizer step")
        plot.refresh()

    def on_select_changed(self, _: Select.Changed) -> None:
        self.read_if_changed()

    def on_selection_list_selected_changed(self, _: SelectionList.SelectedChanged[str]) -> None:
        self._draw()

    def action_zoom(self) -> None:
        """Zoom in, or out again."""
        self._zoomed = not self._zoomed
        self._draw()

    def action_another(self, by: int) -> None:
        """Show the next quantity, or the one before."""
        select, keys = self.query_one(Select), list(self._quantities)
        place = (keys.index(str(select.value)) + by) % len(keys)
        select.value = keys[place]
