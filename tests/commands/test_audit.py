"""math-verify as a second grader over stored answers: rates, examples, the report's section."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.report.audit import audit_section
from orchestrator.cli import main
from orchestrator.commands import regrade
from orchestrator.data.benchmarks import load_benchmark
from orchestrator.errors import UserError
from orchestrator.experiment import evaluation_protocol
from orchestrator.grading.gold import Gold
from orchestrator.grading.grader import Grade, Grader
from orchestrator.records.writer import RunWriter
from orchestrator.selection import second_opinion
from orchestrator.selection.results_folder import folder_of
from orchestrator.selection.study import Study
from tests.fake_runs import quickstart, record, units_of, write_evaluation, write_run

BENCHMARK = "arithmetic_short"


def test_disagreements_are_counted_in_responses() -> None:
    """math-verify alone does not know that a benchmark states its unit apart from the answer."""
    golds = {"p": Gold("5"), "q": Gold("7", unit="apples")}
    answers = Counter({("p", "5"): 10, ("p", "6"): 4, ("q", "7 + apples"): 2, ("q", "7"): 3})
    graded: list[tuple[str, str]] = []

    class Fake(Grader):
        def grade_answer(self, gold: Gold | str, extracted: str | None) -> Grade:
            assert isinstance(gold, Gold)
            assert extracted is not None
            graded.append((gold.judge, extracted))
            alone = gold.judge == second_opinion.NAME
            right = extracted == gold.answer
            return Grade(right if alone else extracted != "6", extracted)

    found = second_opinion.compared("s", "b", answers, golds, Fake())
    assert (found.answers, found.refused, found.accepted, found.undecided) == (19, 2, 0, 0)
    assert found.rate == 2 / 19
    assert found.examples == [second_opinion.Example("q", "7", "7 + apples", True, 2)]
    assert len(graded) == 2 * len(answers)


def test_math_verify_alone_grades_in_the_grading_process() -> None:
    alone = Gold("\\frac{1}{2}", judge=second_opinion.NAME)
    with Grader() as grader:
        assert grader.grade_answer(alone, "0.5").correct
        assert not grader.grade_answer(alone, "0.25").correct


def test_an_answer_without_a_second_verdict_is_no_disagreement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second judge ends its process, as one does that hangs and is killed."""
    monkeypatch.setattr(second_opinion, "NAME", "tests.commands.test_audit:ends_its_process")
    with Grader() as grader:
        found = second_opinion.compared(
            "s", "b", Counter({("p", "5"): 3}), {"p": Gold("5")}, grader
        )
    assert (found.undecided, found.refused, found.rate) == (3, 0, None)


VERSION = 1


def ends_its_process(gold: Gold, answer: str) -> bool:
    raise RuntimeError(f"{gold.answer} and {answer} are not compared")


def test_an_audit_changes_no_record_and_stands_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, units = quickstart()
    study = Study(experiment, units, tmp_path)
    [vanilla] = units_of(units, "vanilla")
    assert not audit_section(study)
    with pytest.raises(UserError, match="trb submit"):
        regrade.audit(study, as_json=False)
    write_run(tmp_path, experiment, vanilla, {20: [None, None]}, steps=60)
    problems = load_benchmark(BENCHMARK, None)[:3]
    rows = []
    for problem in problems:
        assert problem.gold is not None
        rows.append(replace(record(3, 4, problem.id), answers={problem.gold.answer: 3, "1000": 1}))
    evaluation_id = evaluation_protocol.evaluation_ids(experiment.setups["arithmetic"])[BENCHMARK]
    with closing(RunWriter(tmp_path, vanilla.id)) as run:
        write_evaluation(run, evaluation_id, 20, rows)
    before = [path.read_bytes() for path in sorted((tmp_path / vanilla.id).rglob("*.jsonl"))]
    assert regrade.audit(study, as_json=True) == 0
    [row] = json.loads(capsys.readouterr().out)["audit"]
    assert (row["benchmark"], row["answers"], row["refused"], row["accepted"]) == (
        BENCHMARK,
        12,
        0,
        0,
    )
    after = [path.read_bytes() for path in sorted((tmp_path / vanilla.id).rglob("*.jsonl"))]
    assert after == before
    assert second_opinion.read_audit(folder_of(experiment.name, tmp_path))[0].rate == 0
    assert BENCHMARK in str(audit_section(study))


def test_json_without_an_audit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["regrade", "experiments/quickstart.yaml", "--json"])
    assert "--json" in capsys.readouterr().err
