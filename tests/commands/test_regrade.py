"""Recounting what was right from stored answers: carried over from older graders, idempotent,
refused while running; and math-verify as a second grader of them.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.commands import regrade
from orchestrator.data.benchmarks import load_benchmark
from orchestrator.errors import UserError
from orchestrator.experiment import evaluation_protocol
from orchestrator.experiment.units import Unit
from orchestrator.grading.gold import GRADER_VERSION, Gold
from orchestrator.grading.grader import Grade, Grader
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import ProblemRecord, ResponseText, Slice, length_histogram
from orchestrator.records.writer import RunWriter, write_slice
from orchestrator.selection.study import Study
from tests.fake_runs import QUICKSTART, quickstart, units_of, write_evaluation

Trial = tuple[Study, Unit, dict[str, str]]
STEP, BENCHMARK = 20, "arithmetic_short"
NEXT_VERSION = str(int(GRADER_VERSION) + 1)


def records(correct: int, n: int = 4) -> list[ProblemRecord]:
    """All problems of the benchmark: n − 1 right answers and a wrong one, of which `correct` were
    counted.
    """
    problems = load_benchmark(BENCHMARK, None)
    golds = [problem.gold.answer for problem in problems if problem.gold is not None]
    return [
        ProblemRecord(
            problem.id,
            n,
            correct,
            1,
            0,
            0,
            10 * n,
            {gold: n - 1, "1000": 1},
            length_histogram(range(9, 9 + n)),
        )
        for problem, gold in zip(problems, golds, strict=True)
    ]


def recounted(n: int = 4) -> list[ProblemRecord]:
    """The same as the grader counts them, with the answers that it takes for right."""
    found = []
    for record in records(n - 1, n):
        gold = next(iter(record.answers))
        found.append(replace(record, right_answers={gold: n - 1}))
    return found


def evaluated(runs: Path, unit: Unit, evaluation_id: str, rows: list[ProblemRecord]) -> None:
    with closing(RunWriter(runs, unit.id)) as run:
        write_evaluation(run, evaluation_id, STEP, rows)


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    """The quickstart in an empty folder, its vanilla trial, and the ids of its evaluations."""
    experiment, units = quickstart()
    ids = evaluation_protocol.evaluation_ids(experiment.setups["arithmetic"])
    return Study(experiment, units, tmp_path), units_of(units, "vanilla")[0], ids


def contents(runs: Path) -> dict[str, str]:
    files = [path for path in runs.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {
        str(path.relative_to(runs)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def test_wrong_counts_are_mended_once_and_nothing_else(
    trial: Trial, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, unit, ids = trial
    evaluated(tmp_path, unit, ids[BENCHMARK], [*records(0)[:5], *records(4)[5:8], *records(3)[8:]])
    assert regrade.regrade(study) == 0
    assert RunReader(tmp_path, unit.id).evaluation(ids[BENCHMARK], STEP) == recounted()
    once = contents(tmp_path)
    assert regrade.regrade(study) == 0
    assert contents(tmp_path) == once
    out = capsys.readouterr().out
    first, second = [line for line in out.splitlines() if BENCHMARK in line]
    counted = f"arithmetic {BENCHMARK}: 1 evaluations, 200 problems, 800 answers"
    assert first == f"{counted}; 8 problems changed, right answers +15 −3"
    assert second == f"{counted}; 0 problems changed, right answers +0 −0"


@pytest.mark.parametrize("repetition", regrade.REPETITIONS)
def test_scores_of_an_older_grader_are_carried_over(
    repetition: int,
    trial: Trial,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study, unit, _ = trial
    setup = study.setup_of(unit)
    old = evaluation_protocol.repeated_evaluation_ids(setup, repetition)[BENCHMARK]
    evaluated(tmp_path, unit, old, records(0))
    before = contents(tmp_path)
    monkeypatch.setattr(regrade, "GRADER_VERSION", NEXT_VERSION)
    regrade.regrade(study)
    new = evaluation_protocol.repeated_evaluation_ids(setup, repetition, NEXT_VERSION)[BENCHMARK]
    run = RunReader(tmp_path, unit.id)
    assert new != old
    assert run.evaluation(new, STEP) == recounted()
    assert run.evaluation(old, STEP) == records(0)
    assert contents(tmp_path).items() > before.items()
    assert "; 1 carried over from an older version of the grader\n" in capsys.readouterr().out


def test_more_samples_win_over_a_newer_grader(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, unit, ids = trial
    setup = study.setup_of(unit)
    new = evaluation_protocol.evaluation_id(setup, BENCHMARK, NEXT_VERSION)
    monkeypatch.setattr(regrade, "GRADER_VERSION", NEXT_VERSION)
    for older, newer in ((4, 2), (2, 4), (4, 4)):
        evaluated(tmp_path, unit, ids[BENCHMARK], records(0, n=older))
        evaluated(tmp_path, unit, new, records(0, n=newer))
        regrade.regrade(study)
        assert RunReader(tmp_path, unit.id).evaluation(new, STEP) == recounted(n=4)


# --- from texts ---


def stale(keeps: int, n: int = 2) -> tuple[list[ProblemRecord], list[ResponseText]]:
    """Records and the first `keeps` texts of each problem: the stored answers overlook the box.

    The first response of a problem is right, the others are wrong.
    """
    found, texts = [], []
    for problem in load_benchmark(BENCHMARK, None):
        assert problem.gold is not None
        gold = problem.gold.answer
        found.append(ProblemRecord(problem.id, n, 0, 1, 0, 0, 9 * n, {"overlooked": n}))
        for sample in range(keeps):
            text = rf"so \boxed{{{gold if sample == 0 else -1}}}"
            texts.append(
                ResponseText(
                    problem=problem.id,
                    sample=sample,
                    prompt="?",
                    gold=gold,
                    text=text,
                    answer="overlooked",
                    right=False,
                    truncated=False,
                    timed_out=False,
                    tokens=9 + sample,
                )
            )
    return found, texts


def write_stale(runs: Path, unit: Unit, evaluation_id: str, keeps: int) -> RunReader:
    run, (found, texts) = RunReader(runs, unit.id), stale(keeps)
    write_slice(run, evaluation_id, STEP, Slice(0, 2, 0, 200, 200), found, texts)
    return run


def test_answers_are_extracted_anew_where_all_texts_are_kept(
    trial: Trial, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, unit, ids = trial
    run = write_stale(tmp_path, unit, ids[BENCHMARK], keeps=2)
    regrade.regrade(study)
    first = run.evaluation(ids[BENCHMARK], STEP)
    assert first is not None
    assert {record.correct for record in first} == {0}
    capsys.readouterr()
    regrade.regrade(study, anew=True)
    records, texts = run.evaluation(ids[BENCHMARK], STEP), run.texts(ids[BENCHMARK], STEP)
    assert records is not None
    for index, record in enumerate(records):
        right, wrong = texts[2 * index : 2 * index + 2]
        assert (right.answer, right.right) == (right.gold, True)
        assert (wrong.answer, wrong.right) == ("-1", False)
        assert record.answers == {"-1": 1, right.gold: 1}
        assert (record.correct, record.no_answer, record.truncated) == (1, 0, 1)
        assert (record.right_answers, record.tokens_right) == ({right.gold: 1}, 9)
    out = capsys.readouterr().out
    assert "200 problems changed, right answers +200 −0; 400 responses read anew" in out
    once = contents(tmp_path)
    regrade.regrade(study, anew=True)
    assert contents(tmp_path) == once


def test_stored_answers_stay_where_only_a_part_has_texts(
    trial: Trial, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, unit, ids = trial
    run = write_stale(tmp_path, unit, ids[BENCHMARK], keeps=1)
    regrade.regrade(study, anew=True)
    records = run.evaluation(ids[BENCHMARK], STEP)
    assert records is not None
    assert {(*record.answers, record.correct) for record in records} == {("overlooked", 0)}
    assert {text.answer for text in run.texts(ids[BENCHMARK], STEP)} == {"overlooked"}
    out = capsys.readouterr().out
    assert "; 200 texts of evaluations that keep only a part" in out
    assert "; 200 of these texts give another answer now" in out


def test_texts_of_the_version_before_are_read_by_the_present_rules(
    trial: Trial, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, unit, ids = trial
    setup = study.setup_of(unit)
    before = evaluation_protocol.evaluation_id(setup, BENCHMARK, str(int(GRADER_VERSION) - 1))
    found, texts = stale(keeps=1, n=1)
    graded = [replace(record, correct=1, right_answers=record.answers) for record in found]
    mentions, thoughts = texts[:100], texts[100:]
    texts = [replace(text, text=rf"{text.text} as asked in \boxed{{...}}") for text in mentions]
    texts += [replace(text, text=f"<think>{text.text}") for text in thoughts]
    run, part = RunReader(tmp_path, unit.id), Slice(0, 1, 0, 200, 200)
    write_slice(run, before, STEP, part, graded, texts)
    regrade.regrade(study, anew=True)
    assert run.evaluation(before, STEP) == graded, "the older scores stay"
    records = run.evaluation(ids[BENCHMARK], STEP)
    assert records is not None
    assert [(each.correct, each.no_answer) for each in records] == [(1, 0)] * 100 + [(0, 1)] * 100
    out = capsys.readouterr().out
    assert "right answers +0 −100; 1 carried over from an older version of the grader" in out


def test_a_thought_that_the_prompt_opens_is_no_answer() -> None:
    _, (text, *_) = stale(keeps=1)
    thought = replace(text, text=rf"Perhaps \boxed{{{text.gold}}}. Or")
    with Grader() as grader:
        for prompt, answer in [("1+1=?\n", text.gold), ("1+1=?\n<think>\n", None)]:
            graded = regrade.grade_text(
                replace(thought, prompt=prompt), Gold(str(text.gold)), grader, anew=True
            )
            assert (graded.answer, graded.right) == (answer, answer is not None)


def test_texts_are_carried_over_with_their_scores(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, unit, ids = trial
    run = write_stale(tmp_path, unit, ids[BENCHMARK], keeps=1)
    monkeypatch.setattr(regrade, "GRADER_VERSION", NEXT_VERSION)
    regrade.regrade(study)
    setup = study.setup_of(unit)
    new = evaluation_protocol.evaluation_id(setup, BENCHMARK, NEXT_VERSION)
    assert run.texts(new, STEP) == run.texts(ids[BENCHMARK], STEP) != []


def test_a_unit_that_runs_is_left_alone(trial: Trial, tmp_path: Path) -> None:
    study, unit, ids = trial
    first = study.units[0]
    evaluated(tmp_path, first, ids[BENCHMARK], records(0))
    evaluated(tmp_path, unit, ids[BENCHMARK], records(0))
    before = contents(tmp_path)
    with (
        closing(RunWriter(tmp_path, unit.id)),
        pytest.raises(UserError, match=f"{unit.id} is being run; trb regrade when"),
    ):
        regrade.regrade(study)
    assert contents(tmp_path) == before


def test_why_a_unit_failed_is_not_forgotten(trial: Trial, tmp_path: Path) -> None:
    study, unit, ids = trial
    with closing(RunWriter(tmp_path, unit.id)) as run:
        write_evaluation(run, ids[BENCHMARK], STEP, records(0))
        run.append("metrics.jsonl", [{"step": 0}])
        run.fail("no memory", "")
    regrade.regrade(study)
    reader = RunReader(tmp_path, unit.id)
    assert (reader.error, reader.metrics()) == ("no memory", [{"step": 0}])


def test_nothing_to_recount(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["regrade", str(QUICKSTART), "--runs", str(tmp_path)])
    assert capsys.readouterr().err.startswith(f"trb: {tmp_path}: no evaluations of quickstart")
    assert list(tmp_path.iterdir()) == []


def test_what_a_recount_keeps() -> None:
    record = ProblemRecord("p", 7, 7, 2, 1, 1, 70, {"\\frac12": 2, "0.5": 3, "2": 1}, {10: 7})
    right_answers = {"\\frac12": 2, "0.5": 3}
    with Grader() as grader:
        assert regrade.recount(record, Gold("0.50"), grader) == replace(
            record, correct=5, timed_out=0, right_answers=right_answers
        )


def test_tokens_of_right_responses_are_known_while_the_same_answers_are_right() -> None:
    answers = {"\\frac12": 2, "2": 1}
    record = ProblemRecord("p", 3, 2, 0, 0, 0, 30, answers, {}, {"\\frac12": 2}, tokens_right=19)
    with Grader() as grader:
        assert regrade.recount(record, Gold("0.50"), grader) == record
        other = regrade.recount(record, Gold("2"), grader)
    assert (other.correct, other.right_answers, other.tokens_right) == (1, {"2": 1}, None)


# --- math-verify as a second grader ---


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
            alone = gold.judge == regrade.ALONE
            right = extracted == gold.answer
            return Grade(right if alone else extracted != "6", extracted)

    found = regrade.compared("s", "b", answers, golds, Fake())
    assert (found.answers, found.refused, found.accepted, found.undecided) == (19, 2, 0, 0)
    assert found.rate == 2 / 19
    assert found.examples == [regrade.Disagreement("q", "7", "7 + apples", True, 2)]
    assert len(graded) == 2 * len(answers)


def test_math_verify_alone_grades_in_the_grading_process() -> None:
    alone = Gold("\\frac{1}{2}", judge=regrade.ALONE)
    with Grader() as grader:
        assert grader.grade_answer(alone, "0.5").correct
        assert not grader.grade_answer(alone, "0.25").correct


def test_an_answer_without_a_second_verdict_is_no_disagreement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second judge ends its process, as one does that hangs and is killed."""
    monkeypatch.setattr(regrade, "ALONE", "tests.commands.test_regrade:ends_its_process")
    with Grader() as grader:
        found = regrade.compared("s", "b", Counter({("p", "5"): 3}), {"p": Gold("5")}, grader)
    assert (found.undecided, found.refused, found.rate) == (3, 0, None)


VERSION = 1


def ends_its_process(gold: Gold, answer: str) -> bool:
    raise RuntimeError(f"{gold.answer} and {answer} are not compared")


def test_an_audit_changes_no_record(
    trial: Trial, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, unit, ids = trial
    with pytest.raises(UserError, match="trb submit"):
        regrade.audit(study, as_json=False)
    evaluated(tmp_path, unit, ids[BENCHMARK], records(3))
    before = contents(tmp_path / unit.id)
    assert regrade.audit(study, as_json=True) == 0
    [row] = json.loads(capsys.readouterr().out)["audit"]
    counts = {key: row[key] for key in ("benchmark", "answers", "refused", "accepted")}
    assert counts == {"benchmark": BENCHMARK, "answers": 800, "refused": 0, "accepted": 0}
    assert contents(tmp_path / unit.id) == before


def test_an_audit_reads_the_texts_that_are_all_there(
    trial: Trial, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, unit, ids = trial
    found, texts = stale(keeps=2)
    # By their records these responses have no answers, so all that is audited comes from texts.
    records = [replace(record, answers={}, no_answer=2) for record in found]
    part, run = Slice(0, 2, 0, 200, 200), RunReader(tmp_path, unit.id)
    write_slice(run, ids[BENCHMARK], STEP, part, records, texts)
    assert regrade.audit(study, as_json=True) == 0
    (audited,) = json.loads(capsys.readouterr().out)["audit"]
    assert (audited["answers"], audited["refused"], audited["accepted"]) == (400, 0, 0)


def test_json_without_an_audit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["regrade", str(QUICKSTART), "--json"])
    assert "--json" in capsys.readouterr().err
