"""`trb regrade`: count what was right again with the present grader, from the answers that
evaluations keep.

An evaluation's id holds the version of the grader. Records under an id that differs from the
present one in nothing else are counted again and written under the present id; theirs stay as they
are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path

from orchestrator.config import Experiment, Setup
from orchestrator.data.benchmarks import load_benchmark
from orchestrator.errors import LeaseHeld, UserError
from orchestrator.experiment import evaluation_protocol
from orchestrator.grading.gold import MATH
from orchestrator.grading.grader import GRADER_VERSION, Gold, Grader
from orchestrator.grading.judges import version_of
from orchestrator.records.problem_record import ProblemRecord
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import disjoint
from orchestrator.records.writer import RecordWriter, write_slice
from orchestrator.selection.study import Study

# A sweep's answers repeat over checkpoints and methods.
REMEMBERED = 1_000_000
REPETITIONS = (0, evaluation_protocol.FRESH)
NOTES = {
    "carried": "carried over from an older version of the grader",
    "timed_out": "answers timed out",
}


@dataclass(frozen=True)
class Recount:
    """The new counts of one evaluation of a checkpoint; `gained` and `lost` are net right answers
    in each problem.
    """

    carried: int  # 1 if the records were an older grader's
    problems: int
    changed: int  # of the problems
    answers: int
    gained: int
    lost: int
    timed_out: int


def regrade(study: Study) -> int:
    """Recount every evaluation of the experiment that is there, and print what changed. Idempotent;
    0 when done.

    UserError, before anything is written, if a unit is being run.
    """
    there = [unit for unit in study.units if study.reader(unit).path.is_dir()]
    for unit in there:
        if study.reader(unit).running:
            raise UserError(f"{unit.id} is being run; trb regrade when it is done or stopped")
    golds = Golds(study.experiment)
    found: dict[tuple[str, str], list[Recount]] = {}
    with Grader(
        deadline_s=study.experiment.runtime.grader_deadline_s, cache_size=REMEMBERED
    ) as grader:
        for unit in there:
            with _writer(study.runs, unit.id) as run:
                for benchmark, counted in _regrade_unit(run, unit.setup, golds, grader):
                    found.setdefault((unit.setup, benchmark), []).append(counted)
    if not found:
        raise UserError(
            f"{study.runs}: no evaluations of {study.experiment.name}; trb submit makes them"
        )
    for (setup, benchmark), counted in sorted(found.items()):
        print(_line(setup, benchmark, counted))
    print(f"grader version {GRADER_VERSION}; + and − are net within each problem")
    return 0


def recount(record: ProblemRecord, gold: Gold, grader: Grader) -> ProblemRecord:
    """The record with its grades as the grader sees its answers; what was extracted stays.

    A record has no length of a single response, so the tokens of the right ones are known only
    while the same answers are right.
    """
    right_answers, timed_out = dict[str, int](), 0
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


class Golds:
    """Golds by problem id, read when first asked for: an experiment's data are needed only where it
    has scores.
    """

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
    run: RunReader, setup: str, golds: Golds, grader: Grader
) -> Iterator[tuple[str, Recount]]:
    """(benchmark, what came of it) for every checkpoint of a unit with samples, fresh ones
    included.
    """
    evaluated = golds.experiment.setups[setup]
    for benchmark, repetition in itertools.product(evaluated.evaluation.benchmarks, REPETITIONS):
        ids = _ids_by_version(evaluated, benchmark, repetition)
        for step in sorted({step for each in ids for step in run.evaluated_steps(each)}):
            yield benchmark, _regrade_checkpoint(run, ids, step, golds.of(setup, benchmark), grader)


def _ids_by_version(setup: Setup, benchmark: str, repetition: int) -> list[str]:
    """Ids of one evaluation under the present version of the grader, then under the older ones,
    newest first.
    """
    grader = setup.evaluation.benchmarks[benchmark].grader
    present = int(GRADER_VERSION if grader == MATH else version_of(grader))
    versions = [str(version) for version in range(present, 0, -1)]
    return [
        evaluation_protocol.repeated_evaluation_ids(setup, repetition, version)[benchmark]
        for version in versions
    ]


def _regrade_checkpoint(
    run: RunReader, ids: list[str], step: int, golds: dict[str, Gold], grader: Grader
) -> Recount:
    """Recount all slices of a checkpoint into the present id; of equal ones, the newest grader's."""
    present = ids[0]
    graded_as = {
        part: evaluation_id
        for evaluation_id in reversed(ids)
        for part in run.slices(evaluation_id, step)
    }
    total = {field.name: 0 for field in fields(Recount)}
    for part in disjoint(graded_as):
        old = run.slice_records(graded_as[part], step, part)
        new = [recount(record, golds[record.problem], grader) for record in old]
        carried = graded_as[part] != present
        if carried or new != old:
            write_slice(run, present, step, part, new, replace=True)
        difference = [
            after.correct - before.correct for before, after in zip(old, new, strict=True)
        ]
        total["carried"] |= carried
        total["problems"] += len(new)
        total["answers"] += sum(record.n - record.no_answer for record in new)
        total["changed"] += sum(each != 0 for each in difference)
        total["gained"] += sum(each for each in difference if each > 0)
        total["lost"] -= sum(each for each in difference if each < 0)
        total["timed_out"] += sum(record.timed_out for record in new)
    return Recount(**total)


def _line(setup: str, benchmark: str, counted: list[Recount]) -> str:
    """Sum up all files of one benchmark in a line."""
    total = {
        field.name: sum(getattr(each, field.name) for each in counted) for field in fields(Recount)
    }
    what = f"{len(counted):,} evaluations, {total['problems']:,} problems, {total['answers']:,} answers"
    changed = f"{total['changed']:,} problems changed, right answers +{total['gained']:,} −{total['lost']:,}"
    notes = [f"{total[name]:,} {said}" for name, said in NOTES.items() if total[name]]
    return f"{setup} {benchmark}: {'; '.join([what, changed, *notes])}"
