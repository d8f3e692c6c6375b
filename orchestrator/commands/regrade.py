"""`trb regrade`: judges the answers that evaluations keep again, with the present grader.

An evaluation's id holds the version of the grader. Records under an id that differs from the
present one in nothing else are counted again and written under the present id; theirs stay as they
are.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from orchestrator.commands.arguments import Parser, add_experiment, load
from orchestrator.config import Experiment, Setup
from orchestrator.data.benchmarks import load_benchmark
from orchestrator.errors import LeaseHeld, UserError
from orchestrator.experiment.evaluation_protocol import FRESH, repeated_evaluation_ids
from orchestrator.grading.gold import GRADER_VERSION, MATH, Gold, version_of
from orchestrator.grading.grader import Grader
from orchestrator.grading.math_verify_alone import ALONE
from orchestrator.grading.notation import extract, open_thought
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import ProblemRecord, ResponseText, Slice, disjoint
from orchestrator.records.writer import RecordWriter, write_slice
from orchestrator.selection.study import Study

# A sweep's answers repeat over checkpoints and methods.
REMEMBERED = 1_000_000
REPETITIONS = (0, FRESH)
NOTES = {
    "carried": "carried over from an older version of the grader",
    "timed_out": "answers timed out",
    "read": "responses read anew from their texts",
    "compared": "texts of evaluations that keep only a part, which rest on stored answers",
    "differing": "of these texts give another answer now",
}
# By name: `evaluations` of checkpoints, and those `carried` over from an older grader; `problems`,
# and those that `changed`; `answers`, and those that `timed_out`; right answers `gained` and `lost`
# in each problem, net. With texts, the responses `read` anew; the texts that were only `compared`, and
# those `differing` from the stored answer.
Recount = Counter[str]


def add(parser: Parser) -> None:
    add_experiment(parser)
    text = "compare with math-verify alone instead: disagreements by benchmark, also in the report"
    parser.flag("--audit", text)
    parser.flag("--json", "with --audit: a JSON document")
    text = "extract answers anew, in evaluations that keep the texts of all their responses"
    parser.flag("--texts", text)
    parser.description = (
        "Count correct answers again, from the extracted answers that evaluations keep, with the "
        "present grader. Scores of an older grader's version are carried over to the present one, "
        "and their files stay. Extracted answers stay too unless --texts is given, and so do the "
        "rewards of training."
    )


def run(options: argparse.Namespace) -> int:
    if options.audit and options.texts:
        raise UserError("--texts: expected without --audit, which reads texts by itself")
    if options.audit:
        return audit(load(options), options.json)
    if options.json:
        raise UserError("--json: expected --audit beside it")
    return regrade(load(options), options.texts)


def regrade(study: Study, anew: bool = False) -> int:
    """Recount every evaluation of the experiment, and print the changes. Idempotent; 0 when done.

    With `anew` answers are extracted again from the texts of responses, in evaluations that keep
    the texts of all. Where only a part has texts, counts would mix two extractions: there the
    stored answers stay, and the texts that would give others are counted.

    UserError, before anything is written, if a unit is being run.
    """
    there = [unit for unit in study.units if study.reader(unit).path.is_dir()]
    for unit in there:
        if study.reader(unit).running:
            raise UserError(f"{unit.id} is being run; trb regrade when it is done or stopped")
    golds = Golds(study.experiment)
    totals: dict[tuple[str, str], Recount] = {}
    with Grader(study.experiment.runtime.grader_deadline_s, REMEMBERED) as grader:
        for unit in there:
            with _writer(study.runs, unit.id) as run:
                for benchmark, counted in _regrade_unit(run, unit.setup, golds, grader, anew):
                    totals.setdefault((unit.setup, benchmark), Counter()).update(counted)
    if not totals:
        name = study.experiment.name
        raise UserError(f"{study.runs}: no evaluations of {name}; trb submit makes them")
    for (setup, benchmark), total in sorted(totals.items()):
        print(_line(setup, benchmark, total))
    print(f"grader version {GRADER_VERSION}; + and − are net within each problem")
    return 0


def recount(record: ProblemRecord, gold: Gold, grader: Grader) -> ProblemRecord:
    """The record with its grades as the grader sees its answers; what was extracted stays.

    A record has no length of a single response, so the tokens of the right ones are known only
    while the same answers are right.
    """
    right_answers: dict[str, int] = {}
    timed_out = 0
    for answer, count in record.answers.items():
        grade = grader.grade_answer(gold, answer)
        timed_out += count * grade.timed_out
        if grade.correct:
            right_answers[answer] = count
    return replace(
        record,
        correct=sum(right_answers.values()),
        timed_out=timed_out,
        right_answers=right_answers,
        tokens_right=record.tokens_right if right_answers == record.right_answers else None,
    )


def grade_text(text: ResponseText, gold: Gold, grader: Grader, anew: bool) -> ResponseText:
    """The response with the present grade of its answer, extracted `anew` or as it was stored."""
    if anew:
        grade = grader.grade(gold, open_thought(text.prompt) + text.text)
    else:
        grade = grader.grade_answer(gold, text.answer)
    return replace(text, answer=grade.extracted, right=grade.correct, timed_out=grade.timed_out)


def recount_texts(
    records: Sequence[ProblemRecord], texts: Sequence[ResponseText]
) -> list[ProblemRecord]:
    """The records of a slice with the answers and grades of `texts`, which are all its responses."""
    recounted, start = [], 0
    for record in records:
        answers, right_answers = Counter[str](), Counter[str]()
        timed_out = tokens_right = 0
        for text in texts[start : start + record.n]:
            timed_out += text.timed_out
            if text.answer is not None:
                answers[text.answer] += 1
                if text.right:
                    right_answers[text.answer] += 1
                    tokens_right += text.tokens
        start += record.n
        recounted.append(
            replace(
                record,
                correct=right_answers.total(),
                no_answer=record.n - answers.total(),
                timed_out=timed_out,
                answers=dict(sorted(answers.items())),
                right_answers=dict(sorted(right_answers.items())),
                tokens_right=tokens_right,
            )
        )
    return recounted


class Golds:
    """Golds by problem id, read when first asked for: only scores need the experiment's data."""

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self._read: dict[tuple[str, str], dict[str, Gold]] = {}

    def of(self, setup: str, benchmark: str) -> dict[str, Gold]:
        """Golds of one benchmark as the setup takes it. UserError if its problems cannot be had."""
        if (setup, benchmark) not in self._read:
            run = self.experiment.setups[setup].evaluation.benchmarks[benchmark]
            problems = load_benchmark(benchmark, self.experiment.data_dir, run)
            self._read[setup, benchmark] = {p.id: p.gold for p in problems if p.gold is not None}
        return self._read[setup, benchmark]


@contextmanager
def _writer(runs: Path, unit_id: str) -> Iterator[RecordWriter]:
    try:
        writer = RecordWriter(runs, unit_id)
    except LeaseHeld as error:
        raise UserError(f"{error}; trb regrade when it is done or stopped") from None
    with closing(writer):
        yield writer


def _regrade_unit(
    run: RunReader, setup: str, golds: Golds, grader: Grader, anew: bool
) -> Iterator[tuple[str, Recount]]:
    """(benchmark, recount) for every checkpoint of a unit with samples, fresh ones included."""
    evaluated = golds.experiment.setups[setup]
    for benchmark, repetition in itertools.product(evaluated.evaluation.benchmarks, REPETITIONS):
        ids = _ids_by_version(evaluated, benchmark, repetition)
        steps: set[int] = set()
        for evaluation_id in ids:
            steps.update(run.evaluated_steps(evaluation_id))
        for step in sorted(steps):
            of_problems = golds.of(setup, benchmark)
            yield benchmark, _regrade_checkpoint(run, ids, step, of_problems, grader, anew)


def _ids_by_version(setup: Setup, benchmark: str, repetition: int) -> list[str]:
    """Ids of one evaluation under the present version of the grader and its older ones, newest first."""
    grader = setup.evaluation.benchmarks[benchmark].grader
    present = int(GRADER_VERSION if grader == MATH else version_of(grader))
    ids = []
    for version in range(present, 0, -1):
        of_setup = repeated_evaluation_ids(setup, repetition, str(version))
        ids.append(of_setup[benchmark])
    return ids


def _regrade_checkpoint(
    run: RunReader,
    ids: list[str],
    step: int,
    golds: dict[str, Gold],
    grader: Grader,
    anew: bool,
) -> Recount:
    """Recount all slices of a checkpoint into the present id; of equal ones, the newest grader's."""
    present = ids[0]
    graded_as: dict[Slice, str] = {}
    for evaluation_id in reversed(ids):  # the newest comes last and replaces the others
        graded_as |= dict.fromkeys(run.slices(evaluation_id, step), evaluation_id)
    texts_of: dict[Slice, list[ResponseText]] = {}
    keeps_all = True
    for part in disjoint(graded_as):
        texts_of[part] = run.slice_texts(graded_as[part], step, part)
        keeps_all = keeps_all and len(texts_of[part]) == part.responses
    total = Recount(evaluations=1)
    for part, texts in texts_of.items():
        old = run.slice_records(graded_as[part], step, part)
        graded = [
            grade_text(text, golds[text.problem], grader, anew and keeps_all) for text in texts
        ]
        if anew and keeps_all:
            total["read"] += len(texts)
            new = recount_texts(old, graded)
        else:
            new = [recount(record, golds[record.problem], grader) for record in old]
            if anew:
                total["compared"] += len(texts)
                for text in texts:
                    other = grade_text(text, golds[text.problem], grader, anew)
                    total["differing"] += other.answer != text.answer
        if graded_as[part] != present:
            total["carried"] = 1
        if graded_as[part] != present or new != old or graded != texts:
            write_slice(run, present, step, part, new, graded, replace=True)
        for before, after in zip(old, new, strict=True):
            total["problems"] += 1
            total["answers"] += after.n - after.no_answer
            total["changed"] += after.correct != before.correct
            total["gained"] += max(0, after.correct - before.correct)
            total["lost"] += max(0, before.correct - after.correct)
            total["timed_out"] += after.timed_out
    return total


def _line(setup: str, benchmark: str, total: Recount) -> str:
    """Sum up all evaluations of one benchmark in a line."""
    counted = f"{total['evaluations']:,} evaluations, {total['problems']:,} problems"
    right = f"right answers +{total['gained']:,} −{total['lost']:,}"
    parts = [
        f"{counted}, {total['answers']:,} answers",
        f"{total['changed']:,} problems changed, {right}",
    ]
    for name, meaning in NOTES.items():
        if total[name]:
            parts.append(f"{total[name]:,} {meaning}")
    return f"{setup} {benchmark}: {'; '.join(parts)}"


# --- audit: math-verify alone as a second grader of the answers that are kept ---

EXAMPLES = 5  # of a benchmark, the most frequent disagreements first


@dataclass(frozen=True)
class Disagreement:
    """An answer on which the graders disagree; `count` responses gave it."""

    problem: str
    gold: str
    answer: str
    correct: bool  # by the sweep's grader
    count: int


@dataclass(frozen=True)
class Audited:
    """The disagreements on one benchmark, counted in responses with an answer.

    math-verify alone `refused` or `accepted` an answer on which the sweep's grader decided
    otherwise. `undecided` answers, without a verdict of math-verify in time, are no disagreements.
    """

    setup: str
    benchmark: str
    answers: int
    refused: int
    accepted: int
    undecided: int
    examples: list[Disagreement] = field(default_factory=list)

    @property
    def rate(self) -> float | None:
        """Share of disagreements among the answers on which both graders gave a verdict."""
        decided = self.answers - self.undecided
        return (self.refused + self.accepted) / decided if decided else None


def compared(
    setup: str,
    benchmark: str,
    answers: Counter[tuple[str, str]],
    golds: dict[str, Gold],
    grader: Grader,
) -> Audited:
    """Grade each different answer twice; `answers` counts (problem, answer)."""
    refused = accepted = undecided = 0
    examples: list[Disagreement] = []
    for (problem, answer), count in sorted(answers.items(), key=lambda item: (-item[1], item[0])):
        gold = golds[problem]
        ours = grader.grade_answer(gold, answer)
        theirs = grader.grade_answer(replace(gold, judge=ALONE), answer)
        if theirs.timed_out:
            undecided += count
        elif ours.correct != theirs.correct:
            refused += count if ours.correct else 0
            accepted += count if theirs.correct else 0
            if len(examples) < EXAMPLES:
                examples.append(Disagreement(problem, gold.answer, answer, ours.correct, count))
    return Audited(setup, benchmark, sum(answers.values()), refused, accepted, undecided, examples)


def audit(study: Study, as_json: bool) -> int:
    """Print the disagreements by benchmark. Changes no record."""
    golds, found = Golds(study.experiment), []
    deadline = study.experiment.runtime.grader_deadline_s
    with Grader(deadline, REMEMBERED) as grader:
        for setup, configured in study.experiment.setups.items():
            for benchmark, run in configured.evaluation.benchmarks.items():
                if run.grader != MATH:
                    continue  # math-verify has nothing to say on the answers of another judge
                answers = _answers(study, setup, benchmark, golds)
                if answers:
                    gold_of = golds.of(setup, benchmark)
                    found.append(compared(setup, benchmark, answers, gold_of, grader))
    if not found:
        raise UserError(
            f"{study.runs}: no answers of {study.experiment.name} that the mathematical grader"
            " judged; trb submit makes them"
        )
    document = {"audit": [asdict(each) | {"rate": each.rate} for each in found]}
    if as_json:
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return 0
    for each in found:
        for line in _audit_lines(each):
            print(line)
    return 0


def _answers(study: Study, setup: str, benchmark: str, golds: Golds) -> Counter[tuple[str, str]]:
    """How many responses gave each answer to each problem, over all units and checkpoints.

    Answers are extracted anew where a slice keeps the texts of all its responses.
    """
    answers: Counter[tuple[str, str]] = Counter()
    for run, evaluation_id, step, part in _slices(study, setup, benchmark):
        texts = run.slice_texts(evaluation_id, step, part)
        if len(texts) == part.responses:
            for text in texts:
                gold = golds.of(setup, benchmark)[text.problem]
                answer = extract(gold, open_thought(text.prompt) + text.text)
                if answer is not None:
                    answers[text.problem, answer] += 1
            continue
        for record in run.slice_records(evaluation_id, step, part):
            for answer, count in record.answers.items():
                answers[record.problem, answer] += count
    return answers


def _slices(
    study: Study, setup: str, benchmark: str
) -> Iterator[tuple[RunReader, str, int, Slice]]:
    configured = study.experiment.setups[setup]
    for repetition in REPETITIONS:
        evaluation_id = repeated_evaluation_ids(configured, repetition)[benchmark]
        for unit in study.units_of(setup):
            run = study.reader(unit)
            for step in run.evaluated_steps(evaluation_id):
                for part in run.slices(evaluation_id, step):
                    yield run, evaluation_id, step, part


def _audit_lines(found: Audited) -> Iterator[str]:
    rate = "no verdict" if found.rate is None else f"{found.rate:.2%} disagree"
    yield (
        f"{found.setup} {found.benchmark}: {rate} of {found.answers:,} answers; math-verify alone"
        f" refuses {found.refused:,}, accepts {found.accepted:,}, gives no verdict on"
        f" {found.undecided:,}"
    )
    for example in found.examples:
        verdict = "right here, wrong there" if example.correct else "wrong here, right there"
        yield f"  {example.problem}: {example.answer!r} for {example.gold!r}, {verdict} ({example.count:,}×)"
