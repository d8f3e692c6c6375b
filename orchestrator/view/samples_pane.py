"""Responses on the screen: problems by filter, the responses to one of them, and one in full."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import DataTable, Select, Static

from analysis.labels import BASE, benchmark_label, method_label
from analysis.table.model import Table
from orchestrator.config import Experiment
from orchestrator.errors import UserError
from orchestrator.planning.numbers import counted
from orchestrator.sheet import MARK_STYLES, Cell, Mark
from orchestrator.view.live_table import LiveTable
from orchestrator.view.reading import Progress
from orchestrator.view.reading_pane import ReadingPane
from orchestrator.view.responses import (
    ALL,
    Answered,
    Filter,
    ProblemRow,
    ResponseReader,
    all_sources,
    filters,
    selected_sources,
)
from orchestrator.view.searching import holds_words

NO_TEXTS = (
    "No texts of responses are kept here. Evaluations keep them since evaluation.keep_texts exists; "
    "0 keeps none."
)
MARKS: dict[str, Mark] = {"right": "good", "wrong": "bad"}  # other verdicts are warnings
Place = tuple[str, str]  # a setup and a benchmark


class SamplesPane(ReadingPane):
    """The problems of one benchmark on the left; on the right the responses to the chosen one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "another_filter(1)", "Filter"),
        Binding("F", "another_filter(-1)", "Filter back", show=False),
        Binding("b", "another_benchmark", "Benchmark"),
        Binding("s", "every_step", "Steps"),
        Binding("tab", "app.focus_next", "List"),
    ]
    DEFAULT_CSS = """
    SamplesPane #choices { height: 1; }
    SamplesPane Select { width: 1fr; margin: 0 1; }
    SamplesPane #lists { height: 2fr; }
    SamplesPane #problem-rows { width: 33; border-right: solid $panel; }
    SamplesPane #response-rows { width: 1fr; }
    SamplesPane VerticalScroll {
        height: 3fr; border-top: solid $primary; padding: 0 1; scrollbar-size: 1 1;
    }
    """

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._filters: dict[str, Filter] = {}
        self._reader = ResponseReader()
        self._places: list[Place] = []
        self._problems: dict[str, ProblemRow] = {}
        self._responses: dict[str, Answered] = {}
        self._words = ""
        self._every_step = False

    def compose(self) -> ComposeResult:
        with Horizontal(id="choices"):
            yield Select[Place]([], prompt="benchmark", id="benchmark", compact=True)
            yield Select([(ALL, ALL)], value=ALL, allow_blank=False, id="filter", compact=True)
        with Horizontal(id="lists"):
            yield LiveTable(id="problem-rows")
            yield LiveTable(id="response-rows")
        with VerticalScroll():
            yield Static(NO_TEXTS, id="response", markup=False)

    def focus_first(self) -> None:
        """Let keys reach the problems."""
        self.query_one("#problem-rows").focus()

    def search(self, words: str) -> None:
        """Show only problems whose name, prompt or responses hold all of these words."""
        self._words = words
        self._fill_problems()

    def show_table(self, table: Table | None) -> None:
        """Take the table that selects the checkpoints; the first one fills the choices."""
        if table is None or table.facts is None or self._progress is None:
            return
        if self._table is None:
            self._fill_choices(self._progress.study.experiment)
        super().show_table(table)

    def _fill_choices(self, experiment: Experiment) -> None:
        """Offer the benchmarks of all setups, and the filters for the methods."""
        choices: list[tuple[str, Place]] = []
        for name, setup in experiment.setups.items():
            for key, run in setup.evaluation.benchmarks.items():
                label = benchmark_label(key, run)
                several = len(experiment.setups) > 1
                choices.append((f"{name} {label}" if several else label, (name, key)))
                self._places.append((name, key))
        self.query_one("#benchmark", Select).set_options(choices)
        self.query_one("#benchmark", Select).value = self._places[0]
        self._filters = filters(experiment.methods)
        names = [(name, name) for name in self._filters]
        self.query_one("#filter", Select).set_options(names)

    def basis(self, progress: Progress) -> object:
        """The setup with the benchmark, and the table; None before the first table."""
        place = self.query_one("#benchmark", Select).value
        if self._table is None or not isinstance(place, tuple):
            return None
        return place, self._table

    def read(self, progress: Progress) -> None:
        """Read the texts of the chosen benchmark."""
        place = self.query_one("#benchmark", Select).value
        assert isinstance(place, tuple)
        self._read_problems(progress, *place)

    @work(thread=True, exclusive=True, group="problems")
    def _read_problems(self, progress: Progress, setup: str, benchmark: str) -> None:
        table = self._table
        assert table is not None
        assert table.facts is not None
        try:
            with progress.lock:
                selected = selected_sources(progress.study, table.facts, setup, benchmark)
                problems = self._reader.problems(progress.study, selected)
        except UserError as error:
            self.app.call_from_thread(self._say, str(error))
            return
        self.app.call_from_thread(self._take_problems, problems)

    def _take_problems(self, problems: list[ProblemRow]) -> None:
        self._problems = {row.problem: row for row in problems}
        if not problems:
            self._say(NO_TEXTS)
        self._fill_problems()

    def _fill_problems(self) -> None:
        chosen = str(self.query_one("#filter", Select).value)
        passes = self._filters.get(chosen, lambda _: True)
        rows = {}
        for key, row in self._problems.items():
            if passes(row.responses) and holds_words(_searched(row), self._words):
                count = len(row.responses)
                mark: Mark | None = "good" if row.right == count else None
                rows[key] = [Cell(key), Cell(f"{row.right}/{count}", mark=mark)]
        headings = [counted(len(rows), "problem"), "Right"]
        self.query_one("#problem-rows", LiveTable).show(headings, rows)
        if not rows:
            self.query_one("#response-rows", LiveTable).show(["Grade"], {})
            self._say("No problem passes the filter." if self._problems else NO_TEXTS)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        key = event.row_key.value
        if event.data_table.id == "problem-rows" and key in self._problems:
            self._read_responses(key)
        elif key in self._responses:
            self._describe(self._responses[key])

    @work(thread=True, exclusive=True, group="responses")
    def _read_responses(self, problem: str) -> None:
        progress, place = self._progress, self.query_one("#benchmark", Select).value
        assert progress is not None
        assert isinstance(place, tuple)
        setup, benchmark = place
        wanted = problem, self._every_step
        known = self._problems[problem].responses
        # Responses of the selected checkpoints are there at once; files of the others take longer.
        self.app.call_from_thread(self._take_responses, wanted, list(known))
        # Each source once, in the order of the table.
        selected = list(dict.fromkeys(each.source for each in known))
        try:
            with progress.lock:
                sources = all_sources(progress.study, selected, setup, benchmark, wanted[1])
                responses = self._reader.responses(progress.study, sources, problem)
        except UserError as error:
            self.app.call_from_thread(self._say, str(error))
            return
        self.app.call_from_thread(self._take_responses, wanted, responses)

    def _take_responses(self, wanted: tuple[str, bool], responses: list[Answered]) -> None:
        table = self.query_one("#response-rows", LiveTable)
        selected = self.query_one("#problem-rows", LiveTable).selected
        if wanted != (selected, self._every_step):  # the user has gone on since
            return
        self._responses, rows = {each.key: each for each in responses}, {}
        for key, each in self._responses.items():
            source, text = each.source, each.text
            sample = f"{text.sample} fresh" if source.fresh else f"{text.sample}"
            rows[key] = [
                Cell(each.verdict, mark=_mark(each)),
                Cell(text.answer or ""),
                Cell(method_label(source.method or BASE)),
                Cell(str(source.seed) if source.method else ""),
                Cell(str(source.step)),
                Cell(sample),
                Cell(str(text.tokens)),
            ]
        headings = ["Grade", "Answer", "Method", "Seed", "Step", "Sample", "Tokens"]
        table.show(headings, rows, left=(0, 1, 2, 5))
        shown = self._responses.get(table.selected or "")
        if shown is not None:
            self._describe(shown)

    def _describe(self, each: Answered) -> None:
        """Show the prompt as the model saw it, and the response after it."""
        text = each.text
        shown = Text.assemble((f"gold {text.gold} · answer {text.answer} · ", "bold"))
        style = MARK_STYLES[_mark(each)]
        shown.append(f"{each.verdict} · {text.tokens} tokens\n", style)
        shown.append(text.prompt, "dim")
        shown.append(text.text)
        self._say(shown)

    def _say(self, text: Text | str) -> None:
        self.query_one("#response", Static).update(text)

    def on_select_changed(self, event: Select.Changed) -> None:
        if event.select.id == "filter":
            self._fill_problems()
        else:
            self.read_if_changed()

    def action_another_filter(self, by: int) -> None:
        """Take the next filter, or the one before."""
        names = list(self._filters)
        if names:
            choice = self.query_one("#filter", Select)
            choice.value = names[(names.index(str(choice.value)) + by) % len(names)]

    def action_another_benchmark(self) -> None:
        """Show the problems of the next benchmark."""
        choice = self.query_one("#benchmark", Select)
        if isinstance(choice.value, tuple):
            place = self._places.index(choice.value) + 1
            choice.value = self._places[place % len(self._places)]

    def action_every_step(self) -> None:
        """Show responses of all steps, or of the selected ones again."""
        self._every_step = not self._every_step
        problem = self.query_one("#problem-rows", LiveTable).selected
        if problem in self._problems:
            self._read_responses(problem)


def _mark(each: Answered) -> Mark:
    return MARKS.get(each.verdict, "warning")


def _searched(row: ProblemRow) -> str:
    """The text that a search for problems looks through."""
    texts = [row.problem, row.responses[0].text.prompt]  # the same prompt for all responses
    for each in row.responses:
        texts.append(each.text.text)
    return "\n".join(texts)
