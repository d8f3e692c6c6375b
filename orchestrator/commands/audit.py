"""`trb regrade --audit`: math-verify alone as a second grader over the answers that evaluations keep.

Changes no record. The rates and examples lie in `audit.json` of the experiment's results folder,
from which `trb report` shows them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from orchestrator.commands.regrade import REMEMBERED, REPETITIONS, Golds
from orchestrator.errors import UserError
from orchestrator.experiment import evaluation_protocol
from orchestrator.grading.gold import MATH, Gold
from orchestrator.grading.grader import Grader
from orchestrator.grading.math_verify_alone import NAME
from orchestrator.records.files import pretty, write_atomically
from orchestrator.selection.results_folder import claim
from orchestrator.selection.study import Study

AUDIT = "audit.json"
EXAMPLES = 5  # of a benchmark, the most frequent disagreements first


@dataclass(frozen=True)
class Example:
    """An answer on which the graders disagree; `count` responses gave it."""

    problem: str
    gold: str
    answer: str
    correct: bool  # by the sweep's grader
    count: int


@dataclass(frozen=True)
class Audited:
    """The disagreements on one benchmark, in responses with an answer.

    `refused`: right by the sweep's grader alone; `accepted`: right by math-verify alone;
    `undecided`: math-verify gave no verdict in time. Those count as no disagreement.
    """

    setup: str
    benchmark: str
    answers: int
    refused: int
    accepted: int
    undecided: int
    examples: list[Example] = field(default_factory=list)

    @property
    def rate(self) -> float | None:
        """Share of disagreements among the answers on which both graders gave a verdict."""
        decided = self.answers - self.undecided
        return (self.refused + self.accepted) / decided if decided else None


def audit(study: Study, as_json: bool) -> int:
    """Print the disagreements by benchmark, and keep them beside the experiment's results."""
    golds, found = Golds(study.experiment), []
    deadline = study.experiment.runtime.grader_deadline_s
    with Grader(deadline, REMEMBERED) as grader:
        for setup, configured in study.experiment.setups.items():
            for benchmark, run in configured.evaluation.benchmarks.items():
                if run.grader != MATH:
                    continue  # math-verify has nothing to say on the answers of another judge
                answers = _answers(study, setup, benchmark)
                if answers:
                    gold_of = golds.of(setup, benchmark)
                    found.append(compared(setup, benchmark, answers, gold_of, grader))
    if not found:
        raise UserError(
            f"{study.runs}: no answers of {study.experiment.name} that the mathematical grader"
            " judged; trb submit makes them"
        )
    document = {"audit": [asdict(each) | {"rate": each.rate} for each in found]}
    write_atomically(claim(study) / AUDIT, pretty(document))
    if as_json:
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return 0
    for each in found:
        for line in _lines(each):
            print(line)
    return 0


def compared(
    setup: str,
    benchmark: str,
    answers: Counter[tuple[str, str]],
    golds: dict[str, Gold],
    grader: Grader,
) -> Audited:
    """Grade each different answer twice; `answers` counts (problem, answer)."""
    refused = accepted = undecided = 0
    examples: list[Example] = []
    for (problem, answer), count in sorted(answers.items(), key=lambda item: (-item[1], item[0])):
        gold = golds[problem]
        ours = grader.grade_answer(gold, answer)
        theirs = grader.grade_answer(replace(gold, judge=NAME), answer)
        if theirs.timed_out:
            undecided += count
        elif ours.correct != theirs.correct:
            refused += count if ours.correct else 0
            accepted += count if theirs.correct else 0
            if len(examples) < EXAMPLES:
                examples.append(Example(problem, gold.answer, answer, ours.correct, count))
    return Audited(setup, benchmark, sum(answers.values()), refused, accepted, undecided, examples)


def read_audit(folder: Path) -> list[Audited]:
    """The last audit of an experiment by its results folder; empty where none was made."""
    path = folder / AUDIT
    if not path.is_file():
        return []
    found = []
    for row in json.loads(path.read_text(encoding="utf-8"))["audit"]:
        row.pop("rate")
        examples = [Example(**example) for example in row.pop("examples")]
        found.append(Audited(**row, examples=examples))
    return found


def _answers(study: Study, setup: str, benchmark: str) -> Counter[tuple[str, str]]:
    """How many responses gave each answer to each problem, over all units and checkpoints."""
    answers: Counter[tuple[str, str]] = Counter()
    for problem, given in _records(study, setup, benchmark):
        for answer, count in given.items():
            answers[problem, answer] += count
    return answers


def _records(study: Study, setup: str, benchmark: str) -> Iterator[tuple[str, dict[str, int]]]:
    for unit in study.units:
        if unit.setup != setup or not study.reader(unit).path.is_dir():
            continue
        run = study.reader(unit)
        for repetition in REPETITIONS:
            ids = evaluation_protocol.repeated_evaluation_ids(
                study.experiment.setups[setup], repetition
            )
            for step in run.evaluated_steps(ids[benchmark]):
                for part in run.slices(ids[benchmark], step):
                    for record in run.slice_records(ids[benchmark], step, part):
                        yield record.problem, dict(record.answers)


def _lines(found: Audited) -> Iterator[str]:
    rate = "no verdict" if found.rate is None else f"{found.rate:.2%} disagree"
    yield (
        f"{found.setup} {found.benchmark}: {rate} of {found.answers:,} answers; math-verify alone"
        f" refuses {found.refused:,}, accepts {found.accepted:,}, gives no verdict on"
        f" {found.undecided:,}"
    )
    for example in found.examples:
        verdict = "right here, wrong there" if example.correct else "wrong here, right there"
        yield f"  {example.problem}: {example.answer!r} for {example.gold!r}, {verdict} ({example.count:,}×)"
