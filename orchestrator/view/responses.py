"""Responses of evaluations by problem, and the filters that choose among them.

A problem's row rests on the selected checkpoint of each method, with the responses whose texts were
kept (`evaluation.keep_texts`, one of each problem by default). The responses to one problem also
come from fresh samples and, where asked for, from every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from analysis.facts.evidence import Facts
from orchestrator.experiment.methods import REFERENCE, method_label
from orchestrator.experiment.units import Unit
from orchestrator.records.slices import FAILURES, ResponseText
from orchestrator.selection.study import Study


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


@dataclass(frozen=True)
class ProblemRow:
    """A problem with the responses of the selected checkpoints that a filter lets through."""

    problem: str
    responses: tuple[Answered, ...]

    @property
    def right(self) -> int:
        return sum(each.text.right for each in self.responses)


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
    of_first, of_second = list[bool](), list[bool]()
    for each in responses:
        if each.source.method == right:
            of_first.append(each.text.right)
        elif each.source.method == wrong:
            of_second.append(each.text.right)
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
