"""Curves: means over seeds, differences to vanilla, logged columns and the budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.facts.curves import budgets
from analysis.table.model import results_table
from orchestrator.records.log import COLUMNS
from orchestrator.selection.study import Study
from orchestrator.view.curves import (
    BUDGET,
    DISTANCE,
    EPSILON,
    LEAD,
    SCORE,
    method_curves,
    quantities,
)
from tests.fake_runs import units_of
from tests.view.sweeps import small_sweep

QUANTITIES = {quantity.key: quantity for quantity in quantities()}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return small_sweep(tmp_path)


def points(study: Study, key: str) -> dict[str, dict[float, float]]:
    evidence = results_table(study, depth="intervals").facts
    curves = method_curves(study, evidence, QUANTITIES[key])
    return {curve.method: dict(curve.points) for curve in curves}


def test_every_logged_column_can_be_drawn() -> None:
    assert set(QUANTITIES) == {SCORE, LEAD, DISTANCE, EPSILON, BUDGET, *COLUMNS}
    assert next(iter(QUANTITIES)) == SCORE


def test_scores_are_in_per_cent_and_begin_with_the_untrained_student(study: Study) -> None:
    # 4 samples of 4 problems: 6, 8 and 7, 12 of 16 are right.
    assert points(study, SCORE) == {
        "vanilla": {0: 12.5, 20: 37.5, 40: 50.0},
        "trust_region": {0: 12.5, 20: 43.75, 40: 75.0},
    }
    assert points(study, LEAD)["trust_region"] == {0: 0.0, 20: 6.25, 40: 25.0}


def test_a_column_is_drawn_for_the_methods_that_log_it(study: Study) -> None:
    assert points(study, "loss")["vanilla"][3] == 0.25
    acceptance = points(study, "acceptance")
    assert list(acceptance) == ["trust_region"]
    assert acceptance["trust_region"] == pytest.approx(dict.fromkeys(range(40), 90.0))


def test_the_budget_falls_to_nothing_over_the_warmup(study: Study) -> None:
    (unit,) = units_of(study.units, "trust_region")
    found = budgets(unit)
    assert found == pytest.approx({step: 0.05 * (1 - step / 12) for step in range(12)})
    assert budgets(units_of(study.units, "vanilla")[0]) == {}
    assert points(study, EPSILON) == {"trust_region": found}
