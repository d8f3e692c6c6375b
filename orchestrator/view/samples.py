"""The tab of responses: problems by filter, the responses to one of them, and one in full.

A problem's row rests on the selected checkpoint of each method, with the responses whose texts were
kept (`evaluation.keep_texts`, one of each problem by default). The responses to one problem also
come from fresh samples and, where asked for, from every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import DataTable, Select

from analysis.facts.evidence import Facts
from analysis.labels import BASE, benchmark_label, method_label
from analysis.table.model import Table
from orchestrator.config import Experiment
from orchestrator.errors import UserError
from orchestrator.experiment.methods import REFERENCE
from orchestrator.experiment.units import Unit
from orchestrator.planning.numbers import counted
from orchestrator.records.slices import FAILURES, ResponseText
from orchestrator.selection.study import Study
from orchestrator.sheet import MARK_STYLES, Cell, Mark
from orchestrator.view.panes import LiveTable, Pane, below
from orchestrator.view.reading import Progress

NO_TEXTS = (
    "No texts of responses are kept here. Evaluations keep them since evaluation.keep_texts exists; "
    "0 keeps none."
)
MARKS: dict[str, Mark] = {"right": "good", "wrong": "bad"}  # other verdicts are warnings
HEADINGS = ("Grade", "Answer", "Method", "Seed", "Step", "Sample", "Tokens")
LEFT = ("Grade", "Answer", "Method", "Sample")
Place = tuple[str, str]  # a setup and a benchmark


class SamplesPane(Pane):
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
    SamplesPane VerticalScroll { height: 3fr; max-height: 100%; }
    """
    FIRST = "#problem-rows"

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._filters: dict[str, Filter] = {}
        self._reader = ResponseReader()
        self._places: list[Place] = []
        self._problems: dict[str, ProblemRow] = {}
        self._responses: dict[str, Answered] = {}
        self._every_step = False

    def compose(self) -> ComposeResult:
        with Horizontal(id="choices"):
            yield Select[Place]([], prompt="benchmark", id="benchmark", compact=True)
            yield Select([(ALL, ALL)], value=ALL, allow_blank=False, id="filter", compact=True)
        with Horizontal(id="lists"):
            yield LiveTable(id="problem-rows")
            yield LiveTable(id="response-rows")
        yield below(NO_TEXTS, "response")

    @property
    def place(self) -> Place | None:
        """The setup and the benchmark that are chosen; None before there is a choice."""
        value = self.query_one("#benchmark", Select).value
        return value if isinstance(value, tuple) else None

    def show_table(self, table: Table | None, problem: str) -> None:
        """Take the table that selects the checkpoints; the first one fills the choices."""
        if table is None or table.facts is None or self.progress is None:
            return
        if self.table is None:
            self._fill_choices(self.progress.study.experiment)
        super().show_table(table, problem)

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

    def basis(self) -> tuple[Any, ...] | None:
        """The setup, the benchmark and the table; None before the first table."""
        place = self.place
        return None if self.table is None or place is None else (*place, self.table)

    def read(self, progress: Progress, basis: tuple[Any, ...]) -> Any:
        """Read the texts of the chosen benchmark."""
        setup, benchmark, table = basis
        selected = selected_sources(progress.study, table.facts, setup, benchmark)
        return self._reader.problems(progress.study, selected)

    def take(self, found: list[ProblemRow]) -> None:
        """Show the problems."""
        self._problems = {row.problem: row for row in found}
        self.fill()

    def fill(self) -> None:
        """Show the problems that pass the filter, and hold the searched words in name, prompt or
        responses.
        """
        chosen = str(self.query_one("#filter", Select).value)
        passes = self._filters.get(chosen, lambda _: True)
        rows = {}
        for key, row in self._problems.items():
            if passes(row.responses) and self.passes(row.text):
                count = len(row.responses)
                mark: Mark | None = "good" if row.right == count else None
                rows[key] = [Cell(key), Cell(f"{row.right}/{count}", mark=mark)]
        problems = counted(len(rows), "problem")
        columns = dict.fromkeys((problems, "Right"))
        self.query_one("#problem-rows", LiveTable).show(columns, rows, [problems])
        if not rows:
            self.query_one("#response-rows", LiveTable).show(dict.fromkeys(HEADINGS), {}, LEFT)
            self.say("No problem passes the filter." if self._problems else NO_TEXTS)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        key = event.row_key.value
        if event.data_table.id == "problem-rows" and key in self._problems:
            self._read_responses(key)
        elif key in self._responses:
            self._describe(self._responses[key])

    @work(thread=True, exclusive=True, group="responses")
    def _read_responses(self, problem: str) -> None:
        progress, place = self.progress, self.place
        assert progress is not None
        assert place is not None
        wanted = problem, self._every_step
        known = self._problems[problem].responses
        # Responses of the selected checkpoints are there at once; files of the others take longer.
        self.app.call_from_thread(self._take_responses, wanted, list(known))
        # Each source once, in the order of the table.
        selected = list(dict.fromkeys(each.source for each in known))
        try:
            with progress.lock:
                sources = all_sources(progress.study, selected, *place, wanted[1])
                responses = self._reader.responses(progress.study, sources, problem)
        except UserError as error:
            self.app.call_from_thread(self.say, str(error))
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
                Cell(each.verdict, mark=each.mark),
                Cell(text.answer or ""),
                Cell(method_label(source.method or BASE)),
                Cell(str(source.seed) if source.method else ""),
                Cell(str(source.step)),
                Cell(sample),
                Cell(str(text.tokens)),
            ]
        table.show(dict.fromkeys(HEADINGS), rows, LEFT)
        shown = self._responses.get(table.selected or "")
        if shown is not None:
            self._describe(shown)

    def _describe(self, each: Answered) -> None:
        """Show the prompt as the model saw it, and the response after it."""
        text = each.text
        shown = Text.assemble((f"gold {text.gold} · answer {text.answer} · ", "bold"))
        style = MARK_STYLES[each.mark]
        shown.append(f"{each.verdict} · {text.tokens} tokens\n", style)
        shown.append(text.prompt, "dim")
        shown.append(text.text)
        self.say(shown)

    def on_select_changed(self, event: Select.Changed) -> None:
        if event.select.id == "filter":
            self.fill()
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
        if self.place is not None:
            after = self._places.index(self.place) + 1
            self.query_one("#benchmark", Select).value = self._places[after % len(self._places)]

    def action_every_step(self) -> None:
        """Show responses of all steps, or of the selected ones again."""
        self._every_step = not self._every_step
        problem = self.query_one("#problem-rows", LiveTable).selected
        if problem in self._problems:
            self._read_responses(problem)


# --- problems, and the responses to them ---


@dataclass(frozen=True)
class TextSource:
    """A checkpoint on one benchmark; `fresh` samples took no part in choosing it."""

    unit_id: str
    label: str
    method: str | None
    seed: int
    step: int
    fresh: bool
    evaluation_id: str


@dataclass(frozen=True)
class Answered:
    """A response of a checkpoint."""

    source: TextSource
    text: ResponseText

    @property
    def key(self) -> str:
        """A name that no other response to the problem has."""
        source = self.source
        return f"{source.unit_id}/{source.step}/{source.fresh}/{self.text.sample}"

    @property
    def verdict(self) -> str:
        """`right`, or the failure of the response."""
        return "right" if self.text.right else self.text.failure or ""

    @property
    def mark(self) -> Mark:
        return MARKS.get(self.verdict, "warning")


@dataclass(frozen=True)
class ProblemRow:
    """A problem with the responses of the selected checkpoints that a filter lets through."""

    problem: str
    responses: tuple[Answered, ...]

    @property
    def right(self) -> int:
        return sum(each.text.right for each in self.responses)

    @property
    def text(self) -> str:
        """The text that a search looks through: its name, its prompt and all responses."""
        texts = [each.text.text for each in self.responses]
        return "\n".join([self.problem, self.responses[0].text.prompt, *texts])


Filter = Callable[[Sequence[Answered]], bool]  # of all responses to a problem
ALL = "all problems"  # the filter that leaves none out


def filters(methods: Iterable[str]) -> dict[str, Filter]:
    """Filters of problems by name: a response of a kind, or one method right and another wrong.

    The untrained student, which fails most problems, passes no filter.
    """
    found: dict[str, Filter] = {ALL: lambda _: True}
    # A default argument keeps the loop's present value; without it all lambdas see the last one.
    for name in reversed(FAILURES):
        found[name] = lambda responses, name=name: _has(responses, name)
    for method in methods:
        if method != REFERENCE:
            for right, wrong in ((method, REFERENCE), (REFERENCE, method)):
                name = f"{method_label(right)} right, {method_label(wrong)} wrong"
                found[name] = lambda responses, pair=(right, wrong): _parted(responses, *pair)
    return found


def _has(responses: Sequence[Answered], failure: str) -> bool:
    """Whether a trained method has a response with one of FAILURES."""
    return any(FAILURES[failure](each.text) for each in responses if each.source.method is not None)


def _parted(responses: Sequence[Answered], right: str, wrong: str) -> bool:
    """Whether all responses of one method are right and all of another one wrong."""
    of_first, of_second = (
        [each.text.right for each in responses if each.source.method == method]
        for method in (right, wrong)
    )
    return bool(of_first and of_second) and all(of_first) and not any(of_second)


def selected_sources(study: Study, evidence: Facts, setup: str, benchmark: str) -> list[TextSource]:
    """The samples by which each method's checkpoint was selected, for each of its seeds."""
    ids, found = study.evaluation_ids(setup), []
    units = {unit.id: unit for unit in study.units}
    for row in evidence.rows:
        for unit_id in row.units if row.setup == setup else ():
            found.append(_source(units[unit_id], row.step, False, ids[benchmark]))
    return found


def all_sources(
    study: Study, selected: Sequence[TextSource], setup: str, benchmark: str, every_step: bool
) -> list[TextSource]:
    """The selected checkpoints with their fresh samples, and with `every_step` the other evaluated
    checkpoints of the same runs.
    """
    ids, fresh = study.evaluation_ids(setup), study.fresh_evaluation_ids(setup)
    units = {unit.id: unit for unit in study.units}
    found = []
    for source in selected:
        unit = units[source.unit_id]
        steps = [source.step]
        if every_step:
            steps = study.reader(unit).evaluated_steps(ids[benchmark])
        for step in steps:
            found.append(_source(unit, step, False, ids[benchmark]))
        found.append(_source(unit, source.step, True, fresh[benchmark]))
    return found


def _source(unit: Unit, step: int, fresh: bool, evaluation_id: str) -> TextSource:
    return TextSource(unit.id, unit.label, unit.method, unit.seed, step, fresh, evaluation_id)


@dataclass
class ResponseReader:
    """Reads texts, those of selected checkpoints once while their slices are the same."""

    _known: dict[TextSource, tuple[object, list[ResponseText]]] = field(default_factory=dict)

    def problems(self, study: Study, selected: Sequence[TextSource]) -> list[ProblemRow]:
        """All problems that some selected checkpoint has texts of, in the order of the benchmark."""
        by_problem: dict[str, list[Answered]] = {}
        for source in selected:
            slices = study.reader(source.unit_id).slices(source.evaluation_id, source.step)
            known = self._known.get(source)
            if known is None or known[0] != slices:
                self._known[source] = known = slices, _texts(study, source)
            for text in known[1]:
                by_problem.setdefault(text.problem, []).append(Answered(source, text))
        for source in list(self._known):
            if source not in selected:  # of another benchmark, or no longer selected
                del self._known[source]
        return [ProblemRow(problem, tuple(each)) for problem, each in by_problem.items()]

    def responses(
        self, study: Study, sources: Sequence[TextSource], problem: str
    ) -> list[Answered]:
        """The responses to one problem; the others of the same files are not kept in memory."""
        found = []
        for source in sources:
            for text in _texts(study, source):
                if text.problem == problem:
                    found.append(Answered(source, text))
        return found


def _texts(study: Study, source: TextSource) -> list[ResponseText]:
    return study.reader(source.unit_id).texts(source.evaluation_id, source.step)
