"""`trb regrade --audit`: math-verify alone as a second grader of the answers that are kept.

Changes no record. The rates and examples lie in `audit.json` of the experiment's results folder,
from which `trb report` shows them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from orchestrator.commands.regrade import REMEMBERED, REPETITIONS, Golds
from orchestrator.errors import UserError
from orchestrator.experiment.evaluation_protocol import repeated_evaluation_ids
from orchestrator.grading.boxes import extract, open_thought
from orchestrator.grading.gold import MATH
from orchestrator.grading.grader import Grader
from orchestrator.records.files import pretty, write_atomically
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import Slice
from orchestrator.selection.results_folder import claim
from orchestrator.selection.second_opinion import AUDIT, Audited, compared
from orchestrator.selection.study import Study


def audit(study: Study, as_json: bool) -> int:
    """Print the disagreements by benchmark, and keep them beside the experiment's results."""
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
    write_atomically(claim(study) / AUDIT, pretty(document))
    if as_json:
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return 0
    for each in found:
        for line in _lines(each):
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
