"""`trb table --metric pass@K` and `maj@K` over run directories."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from analysis import frames
from analysis.table.formats import FORMATS
from analysis.table.model import Table, results_table
from orchestrator.errors import UserError
from orchestrator.experiment.evaluation_protocol import evaluation_ids
from orchestrator.experiment.units import Unit
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import ProblemRecord
from orchestrator.records.writer import RunWriter
from orchestrator.selection.scores import Metric
from orchestrator.selection.study import Study
from tests.analysis.test_confirmed import METHODS, confirm, study_of
from tests.analysis.test_evidence import draw, write
from tests.fake_runs import SAMPLES, quickstart, record, units_of, write_evaluation

PASS_AT_2, MAJ_AT_3 = Metric("pass", 2), Metric("maj", 3)


def noted(correct: int, place: int) -> ProblemRecord:
    """A problem whose wrong answers all differ, as an evaluator notes it."""
    answers = {f"wrong {n}": 1 for n in range(SAMPLES - correct)}
    right = {"right": correct} if correct else {}
    return replace(
        record(correct, problem=f"p{place}"), answers=answers | right, right_answers=right
    )


def write_noted(study: Study, unit: Unit, step: int, counts: dict[str, list[int]]) -> None:
    ids = evaluation_ids(study.experiment.setups[unit.setup])
    with closing(RunWriter(study.runs, unit.id)) as run:
        for key, row in counts.items():
            records = [noted(correct, place) for place, correct in enumerate(row)]
            write_evaluation(run, ids[key], step, records)


def two_seeds(runs: Path) -> Study:
    """Vanilla and SKD with two seeds each."""
    experiment, units = quickstart("seeds=[0,1]")
    study = Study(experiment, units, runs)
    for method, rate in (("vanilla", 0.4), ("skd", 0.6)):
        for place, unit in enumerate(units_of(units, method)):
            write_noted(study, unit, 20, draw(place, rate))
    return study


def averages(table: Table) -> dict[str, float]:
    assert table.facts is not None
    return {row.method: float(row.columns["avg"].score.value) for row in table.facts.rows}


def test_a_table_of_pass_at_k_keeps_the_checkpoints_that_pass_at_1_selects(tmp_path: Path) -> None:
    study = two_seeds(tmp_path)
    once, twice = results_table(study), results_table(study, PASS_AT_2)
    assert once.facts is not None
    assert twice.facts is not None
    for one, two in zip(once.facts.rows, twice.facts.rows, strict=True):
        assert (one.step, one.units) == (two.step, two.units)
        assert two.columns["avg"].score.value > one.columns["avg"].score.value
        assert (two.columns["avg"].split_half, two.columns["avg"].left_out) == (None, None)
    assert twice.notes[0].startswith("pass@2: ")
    assert json.loads(FORMATS["json"](twice))["metric"] == "pass@2"
    assert "pass_at_2" in next(csv.reader(StringIO(FORMATS["csv"](twice))))
    with pytest.raises(
        UserError,
        match=r"--metric: 'pass@5': expected a k of at most 4, the samples of each problem",
    ):
        results_table(study, Metric("pass", 5))


def test_a_majority_needs_two_equal_answers(tmp_path: Path) -> None:
    study = two_seeds(tmp_path)
    voted = results_table(study, MAJ_AT_3)
    # Wrong answers all differ here, so two right ones of three win, and one ties with the others.
    by_hand = {0: 0.0, 1: 1 / 4, 2: 2 / 3, 3: 1.0, 4: 1.0}
    for method, rate in (("vanilla", 0.4), ("skd", 0.6)):
        of_seeds = []
        for place in range(2):
            counts = draw(place, rate)
            means = [sum(map(by_hand.__getitem__, row)) / len(row) for row in counts.values()]
            of_seeds.append(sum(means) / len(means))
        assert averages(voted)[method] == pytest.approx(100 * sum(of_seeds) / 2)
    assert voted.columns[0].label == "Avg maj@3"
    assert voted.notes[0].startswith("maj@3: ")
    assert json.loads(FORMATS["json"](voted))["metric"] == "maj@3"
    assert "maj_at_3" in frames.evidence(voted).columns
    alone = averages(results_table(study, Metric("maj", 1)))
    assert alone == pytest.approx(averages(results_table(study)))


def test_rows_whose_right_answers_were_not_noted_have_no_majority(tmp_path: Path) -> None:
    study = two_seeds(tmp_path)
    (unit, _) = units_of(list(study.units), "vanilla")
    write(tmp_path, study.experiment, unit, 20, draw(0, 0.4))  # as an older version wrote it
    voted = results_table(study, MAJ_AT_3)
    assert list(averages(voted)) == ["skd"]
    values = {row.method: [cell.value for cell in row.cells] for row in voted.rows}
    assert values["vanilla"] == [None] * 3
    assert None not in values["skd"]
    assert "trb regrade" in voted.notes[1]
    assert len(averages(results_table(study, PASS_AT_2))) == 2


def test_cost_curves_leave_out_checkpoints_of_fewer_samples(tmp_path: Path) -> None:
    study = two_seeds(tmp_path)
    (unit, _) = units_of(list(study.units), "vanilla")
    ids = evaluation_ids(study.experiment.setups[unit.setup])
    for each in units_of(list(study.units), "vanilla"):
        for evaluation_id in ids.values():
            few: Sequence[ProblemRecord] = [record(1, n=1, problem="p0")]
            write_evaluation(RunReader(tmp_path, each.id), evaluation_id, 10, few)
    assert len(averages(results_table(study, PASS_AT_2))) == 2


def test_confirmed_checkpoints_have_pass_at_k_too(tmp_path: Path) -> None:
    study = confirm(study_of(tmp_path), *METHODS)
    with pytest.raises(UserError, match="pass@2"):
        results_table(study, PASS_AT_2)  # a single sample of each problem
    table = results_table(study, Metric("maj", 1))  # no right answers were noted
    assert table.facts is not None
    assert [row.units for row in table.facts.confirmed] == [()] * 3
