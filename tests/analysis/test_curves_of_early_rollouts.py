"""Early rollouts: pooled numbers and their margins against sums made by hand."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from analysis.facts import curves
from analysis.facts.curves import (
    POOLED_STEPS,
    SupportPoint,
    jackknife_margin,
    support_points,
)
from orchestrator.experiment.units import Unit
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from tests.fake_runs import quickstart, units_of

EXPERIMENT, UNITS = quickstart()
(VANILLA,) = units_of(UNITS, "vanilla")


def row(
    step: int, reward: float | None, log_ratio: float, log_prob: float = -1.0, length: int = 10
) -> dict[str, Any]:
    scores = {"reward": reward, "log_ratio": log_ratio, "teacher_log_prob": log_prob}
    return {"step": step, "length": length, **scores}


RIGHT, WRONG = row(0, 1.0, 0.0), row(0, 0.0, -1.0)


def write(unit: Unit, runs: Path, *rows: dict[str, Any], done: int = POOLED_STEPS) -> None:
    with closing(RunWriter(runs, unit.id)) as run:
        run.append("rollouts.jsonl", rows)
        run.commit(done)


def points(runs: Path) -> list[SupportPoint]:
    study = Study(EXPERIMENT, UNITS, runs)
    return support_points(study, curves.read_settings(study, "arithmetic"))


def test_a_run_is_one_point_of_its_first_steps(tmp_path: Path) -> None:
    early = [
        row(0, 1.0, -0.1, -0.5, 30),
        row(3, 0.0, -0.2, -2.5, 10),
        row(POOLED_STEPS - 1, 0.0, 0.3, -1.0, 20),
    ]
    write(units_of(UNITS, "trust_region")[1], tmp_path, *early, row(POOLED_STEPS, 1.0, 9.0, -9.0))
    (point,) = points(tmp_path)
    assert (point.method, point.epsilon, point.warmup, point.seed) == ("trust_region", 0.05, 12, 0)
    # A token counts, not a rollout.
    assert point.log_prob == pytest.approx((-0.5 * 30 - 2.5 * 10 - 1.0 * 20) / 60)
    assert (point.auroc, point.reward) == (0.5, pytest.approx(1 / 3))


def test_margins_are_of_leaving_out_steps(tmp_path: Path) -> None:
    rows = []
    for step in range(3):
        rows += [row(step, reward, reward + step / 9, -1.0 - step) for reward in (0.0, 1.0)]
    write(VANILLA, tmp_path, *rows)
    (point,) = points(tmp_path)
    # The means of the other two steps are −2.5, −2 and −1.5.
    assert point.log_prob_margin == pytest.approx(1.96 * (2 / 3 * (0.5**2 + 0 + 0.5**2)) ** 0.5)
    assert point.auroc_margin == 0.0
    assert jackknife_margin([0.5, None, 0.5]) is None
    assert jackknife_margin([]) is None


def test_budgets_and_schedules(tmp_path: Path) -> None:
    for name in ("vanilla", "fixed_epsilon", "skd"):
        write(units_of(UNITS, name)[0], tmp_path, RIGHT, WRONG)
    found = [(point.method, point.epsilon, point.warmup) for point in points(tmp_path)]
    assert found == [("vanilla", None, None), ("fixed_epsilon", 0.01, None)]


def test_rollouts_without_a_reward_or_score_are_left_out(tmp_path: Path) -> None:
    unscored = row(1, 1.0, -9.0) | {"log_ratio": None}
    write(VANILLA, tmp_path, RIGHT, WRONG, row(0, None, 5.0, -50.0), unscored)
    (point,) = points(tmp_path)
    assert (point.log_prob, point.auroc, point.reward) == (-1.0, 1.0, 0.5)


@pytest.mark.parametrize("rewards", [(1.0, 1.0), (0.0, 0.0), (None, None), ()])
def test_no_point_without_right_and_wrong_rollouts(
    tmp_path: Path, rewards: tuple[float | None, ...]
) -> None:
    write(VANILLA, tmp_path, *(row(0, reward, 0.0) for reward in rewards))
    assert points(tmp_path) == []


def test_no_point_before_the_first_steps_are_done(tmp_path: Path) -> None:
    write(VANILLA, tmp_path, RIGHT, WRONG, done=POOLED_STEPS - 1)
    assert points(tmp_path) == []
