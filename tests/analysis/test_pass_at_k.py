"""pass@k: against all subsets of the samples, and through `trb table --metric`."""

from __future__ import annotations

import csv
import itertools
import json
from fractions import Fraction
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from analysis.table import build
from analysis.table.formats import FORMATS
from orchestrator.errors import UserError
from orchestrator.selection.scores import Tally
from orchestrator.selection.study import Study
from tests.analysis.test_confirmed import METHODS, confirm, study_of
from tests.analysis.test_evidence import draw, write
from tests.fake_runs import quickstart, units_of


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(k: int) -> None:
    samples = [[1, 0, 0, 0, 0, 1], [0] * 6, [1] * 6, [0, 0, 0, 1, 0, 0]]
    of_problems = [
        Fraction(sum(any(chosen) for chosen in found), len(found))
        for found in (list(itertools.combinations(problem, k)) for problem in samples)
    ]
    tally = Tally(np.array([6] * 4), np.array([sum(problem) for problem in samples]))
    assert tally.pass_at(k) == sum(of_problems) / 4
    assert tally.shares(k) == pytest.approx([float(share) for share in of_problems])
    assert tally.pass_at(1) == tally.pass_at_1


def test_a_table_of_pass_at_k_keeps_the_checkpoints_that_pass_at_1_selects(tmp_path: Path) -> None:
    experiment, units = quickstart("seeds=[0,1]")
    for method, rate in (("vanilla", 0.4), ("skd", 0.6)):
        for place, unit in enumerate(units_of(units, method)):
            write(tmp_path, experiment, unit, 20, draw(place, rate))
    study = Study(experiment, units, tmp_path)
    once, twice = build.results_table(study), build.results_table(study, 2)
    assert once.evidence is not None
    assert twice.evidence is not None
    for one, two in zip(once.evidence.rows, twice.evidence.rows, strict=True):
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
        build.results_table(study, 5)


def test_confirmed_checkpoints_have_pass_at_k_too(tmp_path: Path) -> None:
    study = confirm(study_of(tmp_path), *METHODS)
    with pytest.raises(UserError, match="pass@2"):
        build.results_table(study, 2)  # a single sample of each problem
