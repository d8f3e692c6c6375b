"""The tab of curves: scores of checkpoints, logged columns and the budget ε over training steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Select, SelectionList
from textual.widgets.selection_list import Selection
from textual_plotext import PlotextPlot

from analysis.facts.curves import (
    ScoredSetting,
    base_scores,
    budget_series,
    budgets,
    distance_series,
    metric_series,
    read_settings,
    score_series,
)
from analysis.facts.evidence import Facts
from analysis.labels import BASE, method_label
from analysis.table.model import Table
from orchestrator.experiment.methods import PROPOSED, REFERENCE
from orchestrator.records.log import COLUMNS
from orchestrator.selection.study import Study
from orchestrator.view.leaderboard import placings
from orchestrator.view.panes import Pane
from orchestrator.view.reading import Progress

SCORE, LEAD, EPSILON = "score", "lead", "epsilon"
DISTANCE, BUDGET = "distance", "budget"
FIRST = ("loss", EPSILON, "acceptance")  # after the scores; then the other columns as they stand
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

Points = Mapping[float, float]  # step → mean over seeds


class CurvesPane(Pane):
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
    FIRST = "SelectionList"

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._quantities = {quantity.key: quantity for quantity in quantities()}
        self._curves: list[MethodCurve] = []
        self._colours: dict[str, tuple[int, int, int]] = {}
        self._zoomed = False

    def compose(self) -> ComposeResult:
        options = [(quantity.title, key) for key, quantity in self._quantities.items()]
        yield Select(options, value=SCORE, allow_blank=False, compact=True)
        with Horizontal():
            yield PlotextPlot()
            yield SelectionList[str](compact=True)

    def show_table(self, table: Table | None, problem: str) -> None:
        """Take the table that selects the settings, and list its methods by score."""
        if table is not None:
            self._list_methods(table)
        super().show_table(table, problem)

    def basis(self) -> tuple[Any, ...] | None:
        """The quantity, the steps that were taken, and the table."""
        steps = self.progress.overview.steps if self.progress else 0
        return self._quantities[str(self.query_one(Select).value)], steps, self.table

    def read(self, progress: Progress, basis: tuple[Any, ...]) -> Any:
        """Read the curves of the quantity."""
        quantity, _, table = basis
        evidence = table.facts if table else None
        return quantity.key, method_curves(progress.study, evidence, quantity)

    def take(self, found: tuple[str, list[MethodCurve]]) -> None:
        """Draw the curves, unless the user has taken another quantity meanwhile."""
        key, curves = found
        if self.query_one(Select).value == key:
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


# --- lines ---


@dataclass(frozen=True)
class Quantity:
    """A quantity that can be drawn over steps; `factor` leads from its values to what is shown."""

    key: str
    title: str
    factor: float = 1.0


@dataclass(frozen=True)
class MethodCurve:
    """A method's line in one setup: means over the seeds of one setting."""

    setup: str
    method: str
    label: str
    points: Points

    @property
    def key(self) -> str:
        """A name of the line that stays the same while the sweep goes on."""
        return f"{self.setup}/{self.method}"


def quantities() -> list[Quantity]:
    """All quantities: the score first, then those of FIRST."""
    found = {
        SCORE: Quantity(SCORE, "pass@1 of checkpoints (%)", 100.0),
        LEAD: Quantity(LEAD, "pass@1 of checkpoints minus vanilla's (points)", 100.0),
        DISTANCE: Quantity(DISTANCE, "KL(p‖q) of checkpoints on held-out prompts (nats)"),
    }
    for key in (*FIRST, *COLUMNS):
        # Keys of FIRST come again among the columns, and keep their first place.
        if key == EPSILON:
            found.setdefault(key, Quantity(key, "ε, the budget of the trust region (nats)"))
            continue
        column = COLUMNS[key]
        unit = "%" if column.unit == "share" else column.unit
        title = column.meaning.removesuffix(".") + (f" ({unit})" if unit else "")
        found.setdefault(key, Quantity(key, title, column.factor))
        if key == "sequence_kl":
            found[BUDGET] = Quantity(BUDGET, "ε·T, the budget of a whole response (nats)")
    return list(found.values())


def method_curves(study: Study, evidence: Facts | None, quantity: Quantity) -> list[MethodCurve]:
    """The line of each method in each setup; methods without a value have none.

    A method's setting is the selected one of the `evidence`, and before that its first one.
    """
    found, untrained = [], base_scores(study)
    for setup in study.experiment.setups:
        lines: dict[str, Points] = {}
        for setting in shown_settings(read_settings(study, setup), setup, evidence):
            if quantity.key in (SCORE, LEAD):
                series = score_series(setting, untrained.get(setup))
            elif quantity.key == EPSILON:  # the schedule of the setting, the same for all seeds
                epsilons = budgets(setting.units[0])
                series = setting.series({step: [value] for step, value in epsilons.items()})
            elif quantity.key == DISTANCE:
                series = distance_series(study, setting)[0]
            elif quantity.key == BUDGET:
                series = budget_series(study, setting)
            else:
                series = metric_series(study, setting, [quantity.key]).get(quantity.key)
            if series is not None and series.has_values:
                lines[setting.method] = series.means(quantity.factor)
        if quantity.key == LEAD:
            lines = minus(lines, lines.get(REFERENCE, {}))
        for method, points in lines.items():
            found.append(MethodCurve(setup, method, method_label(method), points))
    return found


def shown_settings(
    settings: Sequence[ScoredSetting], setup: str, evidence: Facts | None
) -> list[ScoredSetting]:
    """One setting of each method: the selected one, or the first one before a selection."""
    shown: dict[str, ScoredSetting] = {}
    for setting in settings:
        chosen = evidence.find(setup, setting.method) if evidence else None
        if setting.method not in shown or (chosen and chosen.knobs == setting.knobs):
            shown[setting.method] = setting
    return list(shown.values())


def minus(lines: Mapping[str, Points], reference: Points) -> dict[str, Points]:
    """The lines minus the reference, at the steps of both."""
    found: dict[str, Points] = {}
    for method, points in lines.items():
        common = {
            step: value - reference[step] for step, value in points.items() if step in reference
        }
        if common:
            found[method] = common
    return found
